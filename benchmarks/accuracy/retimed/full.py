"""Recorded steps in loops with a full launch queue, and recordings that lost events or hold ranks in one file."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.recorded import TRACES
from benchmarks.accuracy.retimed import device, host, ranks
from benchmarks.accuracy.retimed.case import FAINT, Base, Case, time_of
from benchmarks.accuracy.retimed.judged import ONE, SEVERAL, Make, base_of, marked, said_of, written
from benchmarks.accuracy.retimed.replay import Change
from benchmarks.accuracy.retimed.unit import Event
from benchmarks.accuracy.score import Mark
from benchmarks.accuracy.verdicts import analyze

ROOM = 0.6
"""The share of a step's launches that the queue takes: a step of 1,700 launches with CUDA's queue of some 1,000."""
LEAST = 60
"""A queue that takes fewer is none of any driver."""
_BUFFER = 64
"""Events that a profiler drops at once."""
FULL: Mapping[str, Make] = {
    "checkpoint": host.checkpoint,
    "copy-hidden": host.copy_hidden,
    "family": device.family,
    "gc": host.pauses,
    "healthy": device.healthy,
    "logging": host.logging,
    "products": device.products,
    "python": host.python,
    "python-hidden": host.python_hidden,
    "scatter": device.scatter,
    "throttled": device.throttled,
}
FULL_OF_RANKS: Mapping[str, Make] = {
    "exposed": ranks.exposed,
    "healthy-ranks": ranks.healthy_ranks,
    "low-bandwidth": ranks.low_bandwidth,
    "small-messages": ranks.small_messages,
    "straggler": ranks.straggler,
}


def judge(out: Path, *, count: int, seed: int, jobs: int) -> list[Mark]:
    """Marks of so many cases, drawn by a seed; those that no trace has a place for are left out."""
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(judged, [out] * count, [seed] * count, range(count))
        return [each for each in found if each is not None]


def judged(out: Path, seed: int, number: int) -> Mark | None:
    """One case's mark."""
    case = case_of(seed, number)
    if case is None:
        return None
    name = f"full-{seed}-{number}-{case.kind}-{case.base.file.partition('-')[0]}"
    paths = written(out / name, case)
    if case.kind.startswith("lost"):
        for path in paths:
            dropped(path, case.kind.removeprefix("lost-"), number)
    elif case.kind == "one-file":
        paths = [together(paths)]
    said = analyze(paths)
    for path in (out / name).iterdir():
        path.unlink()
    return marked(name, case, said, said_of(out, case.base))


def case_of(seed: int, number: int) -> Case | None:
    """The case of a number."""
    for attempt in range(12):
        drawn = random.Random(f"full-{seed}-{number}-{attempt}")  # noqa: S311 - to be drawn alike each time
        several = drawn.random() < 0.4
        file = drawn.choice(SEVERAL if several else sorted(file for file, share in ONE.items() if share))
        if not (TRACES / file).exists():
            continue
        count = drawn.choice((2, 4)) if several else 1
        if (chance := drawn.random()) < 0.3:
            base = base_of(seed, file, drawn.random() < 0.5 or ONE[file] == 1.0, count)
            kind = "one-file" if several and chance < 0.15 else drawn.choice(("lost-device", "lost-calls"))
            return Case(kind, base, base.job, Change(), same=kind == "one-file")
        filled = _full(base_of(seed, file, True, count))
        if filled is None:
            continue
        kinds = FULL_OF_RANKS if several else FULL
        case = kinds[drawn.choice(sorted(kinds))](drawn, filled)
        if case is None or (case.cause and not FAINT <= (case.gain or 0.0) <= 4):
            continue
        return case
    return None


def _full(base: Base) -> Base | None:
    """The same job with a queue that takes less than a step launches."""
    launches = len(base.unit.ops)
    room = round(launches * ROOM)
    if room < LEAST:
        return None
    job = replace(base.job, queue=room, seed=f"{base.job.seed}-full")
    return replace(base, job=job, us=time_of(job))


def dropped(path: Path, what: str, number: int) -> None:
    """Leave out every third buffer of a file's device events, or of its calls."""
    trace = json.loads(path.read_text("utf-8"))
    chosen = [event for event in trace["traceEvents"] if _is(event, what)]
    chosen.sort(key=lambda event: event["ts"])
    gone = {id(event) for place, event in enumerate(chosen) if place // _BUFFER % 3 == number % 3}
    trace["traceEvents"] = [event for event in trace["traceEvents"] if id(event) not in gone]
    path.write_text(json.dumps(trace), "utf-8")


def _is(event: Event, what: str) -> bool:
    kinds = {"device": ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"), "calls": ("cuda_runtime", "runtime")}
    return event.get("ph") == "X" and str(event.get("cat")).lower() in kinds[what]


def together(paths: Sequence[Path]) -> Path:
    """All ranks in one file, with the head of the first."""
    traces: list[dict[str, Any]] = [json.loads(path.read_text("utf-8")) for path in paths]
    made = paths[0].with_name("all.json")
    events = [event for trace in traces for event in trace["traceEvents"]]
    made.write_text(json.dumps({**traces[0], "traceEvents": events}), "utf-8")
    return made
