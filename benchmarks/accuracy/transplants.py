"""Faults transplanted into recorded traces: truth by construction, on what real jobs recorded.

Time is stopped at instants at which the device is idle and the training thread is between two operators: all that comes
later is moved by as much, what runs across is made as much longer, and what is put into the gap says what the fault is.
Without it the job is the one that was recorded, so that the gain is exact. A stop is longer than the step, so that no
fault of the recording itself can be worth more.

Nothing is shared with the simulator or with what reads traces. Where a fault is put, how long it lasts and which trace
it is put into are drawn by a seed; even seeds may be looked at while rules are written, odd ones only when all is done.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.accuracy.expectation import Expectation
from benchmarks.accuracy.recorded import TRACES
from benchmarks.accuracy.score import Mark, mark
from benchmarks.accuracy.verdicts import analyze

Event = dict[str, Any]

FILES = (
    "bert-small-h100.json.gz",
    "cnn-v100-ns.json.gz",
    "ddp-2rank-a100.json.gz",
    "dlrm-8rank-a100.json.gz",
    "qwen-0.5b-prefill-h100.json.gz",
    "recsys-2rank-v100.json.gz",
    "resnet50-workers0-v100.json.gz",
    "resnet50-workers4-v100.json.gz",
    "tp-decode-b200.json.gz",
)
LABELS: dict[str, list[str | None]] = {
    file: label["first"]
    for file, label in (json.loads((TRACES / "labels.json").read_text("utf-8")) if TRACES.exists() else {}).items()
    if "first" in label
}
"""What may be named first of the recordings themselves, by hand."""
_SPANS = ("user_annotation", "gpu_user_annotation", "python_function", "Trace", "overhead")
"""What may run across an instant at which time is stopped."""
_STEP = re.compile(r"^ProfilerStep\s*#")
_CLEAR_US = 30.0
"""The device must have been idle for so long around an instant."""
_STOPS_WITHOUT_STEPS = 8


def _nothing(_: Event, at: float, lasts: float) -> Iterator[Event]:
    del at, lasts
    yield from ()


def _function(like: Event, at: float, lasts: float) -> Iterator[Event]:
    yield {**_on(like), "cat": "python_function", "name": "prepare.py(12): score", "ts": at, "dur": lasts, "args": {}}


def _fetch(kind: str) -> Callable[[Event, float, float], Iterator[Event]]:
    def inside(like: Event, at: float, lasts: float) -> Iterator[Event]:
        name = f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        yield {**_on(like), "cat": "user_annotation", "name": name, "ts": at, "dur": lasts, "args": {}}

    return inside


def _allocations(like: Event, at: float, lasts: float) -> Iterator[Event]:
    for part in range(8):
        begin = at + lasts * part / 8
        yield {
            **_on(like),
            "cat": "cuda_runtime",
            "name": "cudaMalloc",
            "ts": begin,
            "dur": lasts / 8 - 0.1,
            "args": {"correlation": 900_000_000 + int(at * 10) + part},
        }


def _context(like: Event, at: float, lasts: float) -> Iterator[Event]:
    args = {"correlation": 910_000_000}
    yield {**_on(like), "cat": "cuda_runtime", "name": "cudaFree", "ts": at, "dur": lasts, "args": args}


def _on(like: Event) -> Event:
    return {"ph": "X", "pid": like["pid"], "tid": like["tid"]}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is put into the gaps, and what may be named for it."""

    inside: Callable[[Event, float, float], Iterator[Event]]
    cause: str
    accepted: tuple[str, ...] = ()
    fetches: bool = False
    """It is one of a loader, of which a recording that has its own says something else."""
    once: bool = False
    """It is put in front of all once, and changes nothing of what a step costs."""


FAULTS = {
    "silence": Fault(_nothing, "host.python", ("host.gc",)),
    "function": Fault(_function, "host.python"),
    "synchronous": Fault(_fetch("SingleProcess"), "input.synchronous-loader", fetches=True),
    "workers": Fault(
        _fetch("MultiProcessing"), "input.too-few-workers", ("input.storage-bound", "input.cpu-bound"), fetches=True
    ),
    "context": Fault(_context, "", once=True),
    "allocations": Fault(_allocations, "host.allocator", ("memory.allocator-retry",)),
}


def judge(out: Path, *, count: int, seed: int, jobs: int) -> list[Mark]:
    """Marks of so many variants, drawn by a seed. Traces that have no instant for a stop are drawn again."""
    cases = []
    for number in range(count):
        drawn = random.Random(f"{seed}-{number}")  # noqa: S311 - to be drawn alike each time
        file, fault = drawn.choice(FILES), drawn.choice(sorted(FAULTS))
        cases.append((out, f"{seed}-{number}", file, fault, drawn.uniform(1.5, 4.0), drawn.uniform(0.05, 0.9)))
    with ProcessPoolExecutor(jobs) as pool:
        return [found for found in pool.map(_judged, *zip(*cases, strict=True)) if found is not None]


def judge_lost(out: Path, *, seed: int, jobs: int) -> list[Mark]:
    """Marks of recordings that lost a part of their events: nothing may be said that is not said of the whole."""
    cases = [(out, seed, file, what) for file in FILES for what in _LOSSES if (TRACES / file).exists()]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(_judged_lost, *zip(*cases, strict=True)))


_LOSSES = {
    "device": ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"),
    "calls": ("cuda_runtime", "cuda_driver", "runtime"),
}
_AS_MUCH = 1.1
"""A gain that is so much larger than that of the whole recording is another claim."""


def _judged_lost(out: Path, seed: int, file: str, what: str) -> Mark:
    trace = json.loads(gzip.decompress((TRACES / file).read_bytes()))
    path = out / f"{seed}-lost-{what}-{file.removesuffix('.gz')}"
    path.write_text(json.dumps({**trace, "traceEvents": lost(trace["traceEvents"], what, seed)}), "utf-8")
    whole, said = analyze([TRACES / file]), analyze([path])
    own = {each.id: each.expected or 1.0 for each in whole.findings}
    fresh = tuple(
        each
        for each in said.findings
        if each.alarming and (each.id not in own or (each.expected or 1.0) > own[each.id] * _AS_MUCH)
    )
    left = replace(said, findings=fresh, cause=fresh[0].id if fresh else None)
    return mark(Expectation(path.stem), left)


def lost(events: Sequence[Event], what: str, seed: int) -> list[Event]:
    """The events without those of a stretch of a quarter to a half of the recording, as of buffers that were full."""
    drawn = random.Random(f"lost-{seed}-{len(events)}")  # noqa: S311 - to be drawn alike each time
    chosen = [
        event for event in events if str(event.get("cat")).lower() in _LOSSES[what] and event.get("dur") is not None
    ]
    chosen.sort(key=lambda event: event["ts"])
    share = drawn.uniform(0.25, 0.5)
    first = round(drawn.uniform(0.1, 0.9 - share) * len(chosen))
    gone = {id(event) for event in chosen[first : first + round(share * len(chosen))]}
    return [event for event in events if id(event) not in gone]


def _judged(out: Path, name: str, file: str, fault: str, times: float, place: float) -> Mark | None:
    if not (TRACES / file).exists() or (FAULTS[fault].once and file not in LABELS):
        return None
    trace = json.loads(gzip.decompress((TRACES / file).read_bytes()))
    made = transplanted(trace["traceEvents"], FAULTS[fault], times, place)
    if made is None:
        return None
    events, gain = made
    path = out / f"{name}-{fault}-{file.removesuffix('.gz')}"
    path.write_text(json.dumps({**trace, "traceEvents": events}), "utf-8")
    known = FAULTS[fault]
    if known.once:
        first = [cause for cause in LABELS[file] if cause is not None]
        # Without steps nobody can tell where the start ends: that it is most of the recording may be said instead.
        accepted = (
            first[1:] if any(_STEP.match(str(event.get("name"))) for event in events) else [*first, "host.warm-up"]
        )
        return mark(Expectation(path.stem, dict.fromkeys(first[:1]), tuple(accepted)), analyze([path]))
    return mark(Expectation(path.stem, {known.cause: gain}, known.accepted), analyze([path]))


def transplanted(events: Sequence[Event], fault: Fault, times: float, place: float) -> tuple[list[Event], float] | None:
    """The events with a fault in every step, and what its removal is worth; ``None`` where it has no place."""
    timed = [event for event in events if isinstance(event.get("ts"), int | float)]
    origin = min(event["ts"] for event in timed)
    main = _training_thread(timed)
    stops = _stops(timed, main, place)
    if fault.once and main is not None:
        first = min(event["ts"] for event in timed if event.get("dur")) - 1.0
        return [*_stopped(events, [first], 1e6 * times, origin, main, fault)], 1.0
    if main is None or len(stops) < 2 or (fault.fetches and any("DataLoader" in str(one.get("name")) for one in timed)):
        return None
    # of the steady steps: without the first two and the last, where there are as many
    steady = [end - begin for _, begin, end in stops]
    steady = steady[2:-1] or steady
    mean_us = sum(steady) / len(steady)
    lasts = mean_us * times
    return [*_stopped(events, [at for at, _, _ in stops], lasts, origin, main, fault)], (mean_us + lasts) / mean_us


def _stopped(
    events: Sequence[Event], stops: Sequence[float], lasts: float, origin: float, main: Event, fault: Fault
) -> Iterator[Event]:
    for event in events:
        if not isinstance(event.get("ts"), int | float):
            yield event
            continue
        begin, length = event["ts"], event.get("dur", 0) or 0
        before = sum(at <= begin for at in stops)
        within = sum(begin < at < begin + length for at in stops)
        moved = {**event, "ts": round(begin - origin + before * lasts, 3)}
        yield {**moved, "dur": length + within * lasts} if within else moved
    for number, at in enumerate(stops):
        yield from fault.inside(main, round(at - origin + number * lasts + 1, 3), lasts - 2)


def _training_thread(timed: Sequence[Event]) -> Event | None:
    """An event of the thread on which most operators run."""
    calls: dict[tuple[Any, Any], list[Event]] = {}
    for event in timed:
        if event.get("cat", "").lower() in ("cpu_op", "operator", "cuda_runtime") and event.get("dur"):
            calls.setdefault((event["pid"], event["tid"]), []).append(event)
    marked = {(event["pid"], event["tid"]) for event in timed if _STEP.match(str(event.get("name")))}
    chosen = {key: found for key, found in calls.items() if key in marked} or calls
    return max(chosen.values(), key=len)[0] if chosen else None


def _stops(timed: Sequence[Event], main: Event | None, place: float) -> list[tuple[float, float, float]]:
    """In each stretch of the job (a step) an instant for a stop, and where the stretch begins and ends."""
    if main is None:
        return []
    marks = [event for event in timed if _STEP.match(str(event.get("name"))) and _is_like(event, main)]
    steps = sorted({event["ts"] for event in marks})
    steps += [max(event["ts"] + event["dur"] for event in marks)] if marks else []
    free = _free_instants(timed)
    if len(steps) < 4:
        first, last = min(event["ts"] for event in timed), max(event["ts"] + (event.get("dur") or 0) for event in timed)
        steps = [first + (last - first) * part / _STOPS_WITHOUT_STEPS for part in range(_STOPS_WITHOUT_STEPS + 1)]
    found = []
    for begin, end in pairwise(steps):
        inside = [at for at in free if begin < at < end]
        if not inside:
            return []
        found.append((min(inside, key=lambda at: abs(at - begin - place * (end - begin))), begin, end))
    return found


def _is_like(event: Event, main: Event) -> bool:
    return (event["pid"], event["tid"]) == (main["pid"], main["tid"])


def _free_instants(timed: Sequence[Event]) -> list[float]:
    """The middles of gaps in which neither the device nor any thread does anything that has a name of its own."""
    busy = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in timed
        if event.get("ph") == "X"
        and event.get("dur")
        and (str(event.get("cat", "")) not in _SPANS or "DataLoader" in str(event.get("name")))
        and not _STEP.match(str(event.get("name")))
    )
    found, until = [], None
    for begin, end in busy:
        if until is not None and begin - until >= _CLEAR_US:
            found.append((begin + until) / 2)
        until = end if until is None else max(until, end)
    return found
