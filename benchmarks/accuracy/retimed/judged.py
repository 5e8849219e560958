"""Cases drawn by a seed, written, and judged."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.accuracy.expectation import Expectation
from benchmarks.accuracy.recorded import TRACES
from benchmarks.accuracy.retimed import device, host, ranks, traces
from benchmarks.accuracy.retimed.case import FAINT, Base, Case, time_of
from benchmarks.accuracy.retimed.device import slower_bus
from benchmarks.accuracy.retimed.own import gain_without
from benchmarks.accuracy.retimed.replay import Job, busy_share, replay
from benchmarks.accuracy.retimed.unit import load, read, steps, tight
from benchmarks.accuracy.score import Mark, mark
from benchmarks.accuracy.verdicts import Named, Said, analyze

ONE = {
    "bert-small-h100.json.gz": 0.0,
    "cnn-v100-ns.json.gz": 1.0,
    "ddp-2rank-a100.json.gz": 0.65,
    "deepseek-v3-dualpipe-h800.json": 1.0,
    "dlrm-8rank-a100.json.gz": 0.65,
    "qwen-0.5b-prefill-h100.json.gz": 0.65,
    "resnet50-workers0-v100.json.gz": 0.65,
    "resnet50-workers4-v100.json.gz": 0.65,
}
"""Recordings with steps, and how often their device is kept busy by them: never where kernels are too short, always
where calls were recorded that a full queue held up, so that the host's own time is not known."""
SEVERAL = ("ddp-2rank-a100.json.gz", "dlrm-8rank-a100.json.gz")
Make = Callable[[random.Random, Base], Case | None]
KINDS: Mapping[str, Make] = {
    "allocator": host.allocator,
    "checkpoint": host.checkpoint,
    "copy-hidden": host.copy_hidden,
    "family": device.family,
    "gc": host.pauses,
    "healthy": device.healthy,
    "launches": host.launches,
    "logging": host.logging,
    "pageable": host.pageable,
    "products": device.products,
    "python": host.python,
    "python-hidden": host.python_hidden,
    "scatter": device.scatter,
    "start-up": host.start_up,
    "sync": host.sync,
    "throttled": device.throttled,
}
KINDS_OF_RANKS: Mapping[str, Make] = {
    "exposed": ranks.exposed,
    "healthy-ranks": ranks.healthy_ranks,
    "low-bandwidth": ranks.low_bandwidth,
    "rotating": ranks.rotating,
    "skewed": ranks.skewed,
    "small-messages": ranks.small_messages,
    "straggler": ranks.straggler,
}
ALONE_TIGHT = ("healthy", "python-hidden", "copy-hidden", "throttled", "scatter")
"""Kinds that are what they are only where the device is busy."""
_AS_MUCH = 0.97
"""What gains that share of what the fault does may be named before it."""
_GB = 1e3


def judge(out: Path, *, count: int, seed: int, jobs: int, only: str = "") -> list[Mark]:
    """Marks of so many cases, drawn by a seed; those that a trace has no place for are drawn again."""
    numbers = [number for number in range(count) if not only or only in f"{seed}-{number}"]
    if jobs == 1:
        return [made for number in numbers if (made := judged(out, seed, number)) is not None]
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(judged, [out] * len(numbers), [seed] * len(numbers), numbers)
        return [each for each in found if each is not None]


def judged(out: Path, seed: int, number: int) -> Mark | None:
    """One case's mark."""
    case = case_of(seed, number)
    if case is None:
        return None
    name = name_of(seed, number, case)
    said = analyze(written(out / name, case))
    shutil.rmtree(out / name)
    return marked(name, case, said, said_of(out, case.base))


def name_of(seed: int, number: int, case: Case) -> str:
    """A case's name."""
    return f"{seed}-{number}-{case.kind}-{case.base.file.partition('-')[0]}-{'tight' if case.base.tight else 'live'}"


def written(folder: Path, case: Case) -> list[Path]:
    """The traces of a case."""
    return traces.write(folder, case.job, replay(case.job, case.change), case.clock, case.prefix)


def case_of(seed: int, number: int) -> Case | None:
    """The case of a number: what is not in the recording and can be told from noise, or a control."""
    for attempt in range(12):
        drawn = random.Random(f"retimed-{seed}-{number}-{attempt}")  # noqa: S311 - to be drawn alike each time
        several = drawn.random() < 0.33
        kind = drawn.choice(sorted(KINDS_OF_RANKS if several else KINDS))
        file = drawn.choice(SEVERAL if several else sorted(ONE))
        close = ONE[file] > 0 and (kind in ALONE_TIGHT or drawn.random() < ONE[file])
        if not (TRACES / file).exists() or (kind in ALONE_TIGHT and not close):
            continue
        base = base_of(seed, file, close, drawn.choice((2, 2, 4)) if several else 1)
        case = (KINDS_OF_RANKS if several else KINDS)[kind](drawn, base)
        if case is None or (case.cause and (case.gain or 0.0) < FAINT) or (case.gain or 0.0) > 4:
            continue
        if kind == "healthy" and base.unit.ops and busy_share(replay(base.job), compute=True) < 0.95:
            continue
        return case
    return None


@cache
def base_of(seed: int, file: str, close: bool, count: int) -> Base:
    """The job that a seed makes of a recording."""
    drawn = random.Random(f"{seed}-{file}-{close}-{count}")  # noqa: S311 - to be drawn alike each time
    trace = load(TRACES / file)
    marks = steps(trace)
    unit = read(file, trace, marks[0] if len(marks) < 3 else drawn.choice(marks[1:-1]))
    if close:
        unit = tight(unit, drawn.uniform(0.45, 0.7))
    if count > 1:
        unit = slower_bus(unit, drawn.uniform(40, 100) * _GB, count)
    job = Job(unit, 9 if count == 1 else 7, count, f"{seed}-{file}")
    return Base(file, close, job, time_of(job))


_BASES: dict[tuple[str, bool, int, str, int], Said] = {}


def said_of(out: Path, base: Base) -> Said:
    """What is said of a job without a change."""
    key = (base.file, base.tight, base.job.ranks, base.job.seed, base.job.queue)
    if key not in _BASES:
        _BASES[key] = _said_of_base(out, base)
    return _BASES[key]


def _said_of_base(out: Path, base: Base) -> Said:
    # two processes may judge the same one
    folder = out / f"base-{os.getpid()}-{base.job.seed}-{base.tight}-{base.job.ranks}-{base.job.queue}"
    said = analyze(traces.write(folder, base.job, replay(base.job)))
    shutil.rmtree(folder)
    return said


def marked(name: str, case: Case, said: Said, of_base: Said) -> Mark:
    """The mark of what is said, beside what is said of the job without the change."""
    own = {each.id: each.expected or 1.0 for each in of_base.findings if each.alarming}
    if not case.cause:
        return mark(Expectation(name), _of_control(case, said, own))
    gain = case.gain or 1.0
    saved = {cause: 1 - 1 / stated for cause, stated in own.items()}
    left = {cause: gain / (gain - min(share, 0.99)) for cause, share in saved.items()}
    larger = {cause for cause, each in left.items() if each >= gain * _AS_MUCH}
    known = Expectation(name, {case.cause: gain}, case.accepted, rank=case.rank)
    if case.cause in own:
        known = replace(known, gains={case.cause: None})
    if case.rank is not None:
        # another name for the rank's fault is right only if it is said of that rank alone
        of_rank = {each.id for each in said.findings if each.ranks == (case.rank,)}
        known = replace(known, accepted=tuple(cause for cause in case.accepted if cause in of_rank))
    others = {each.id for each in said.findings if each.alarming} - larger - {case.cause, *known.accepted}
    brought_out = {cause for cause in others if (gain_without(case, cause) or 0.0) >= gain * _AS_MUCH}
    return mark(known, _without(said, frozenset(larger | brought_out) - {case.cause, *known.accepted}))


def _without(said: Said, ids: frozenset[str]) -> Said:
    """What is said but for some causes, of which the recording has more than was put in."""
    findings = tuple(each for each in said.findings if each.id not in ids)
    cause = said.cause
    if cause in ids:
        cause = next((each.id for each in findings if each.alarming), None)
    return replace(said, findings=findings, cause=cause)


def _of_control(case: Case, said: Said, own: Mapping[str, float]) -> Said:
    """Only what would be a false alarm."""

    def is_new(each: Named) -> bool:
        if case.only:
            return each.id in case.only
        if case.absolute:
            return not each.id.startswith("compute.")
        return each.id not in own or (each.expected or 1.0) > own[each.id] * 1.1 + 0.02

    findings = [each for each in said.findings if each.alarming and is_new(each)]
    shown = {each.id for each in said.findings if each.alarming}
    if case.same:
        lost = sorted(set(own) - shown)
        findings += [Named(f"lost {cause}", "minor", None, None, None, None, ()) for cause in lost]
    return replace(said, findings=tuple(findings), cause=findings[0].id if findings else None)
