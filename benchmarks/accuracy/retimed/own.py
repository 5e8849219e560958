"""What a recording has of its own, and what a faulty job gains by this replay once it is taken away.

A cause that costs nothing in the recorded job may cost much beside a fault: buffers that are sent while the device has
enough to do, until the host is late. Each is known by what was recorded alone, and taken away as its remedy would.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from benchmarks.accuracy.retimed.case import Case, time_of
from benchmarks.accuracy.retimed.host import pinned_speed
from benchmarks.accuracy.retimed.replay import Change, Job
from benchmarks.accuracy.retimed.unit import NOTHING, Call, Event, Op, Unit

Spans = tuple[tuple[float, float], ...]

PYTHON_US = 60.0
"""A stretch of the host of which nothing is recorded is Python from that length on."""
RETURNS_US = 4.0
"""What a call takes that need not wait."""
OF_FP32 = 0.4
"""What is left of a product's time on tensor cores. Of its time a kernel on CUDA cores does the arithmetic of at most
its peak, which tensor cores at 70 % of theirs do in 0.18 of it (15.7 and 125 TFLOP/s); Winograd's spare 2.25 times as
much: 0.4. All are taken to be of the latter kind. Where memory bounds a kernel it may be more; by the recorded shapes
of ResNet-50's convolutions, each at 70 % of the peak or 80 % of the bandwidth, 0.16 is left in all."""
_REST = 1e-3
"""What stays of host time that is taken out, so that the order of all in it stays as well."""
_JOINS = ("aten::flatten_dense_tensors", "aten::unflatten_dense_tensors", "aten::copy_", "c10d::", "record_param_comms")
_PRODUCT = re.compile("gemm|scudnn|convolve|dgrad|wgrad|winograd", re.IGNORECASE)
_OPERATORS = ("cpu_op", "operator", "cuda_runtime", "cuda_driver", "runtime")
_LOADER = "enumerate(DataLoader)#_SingleProcess"


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken out of a step."""

    spans: Spans = ()
    """Of the host's time, none across another."""
    unwaited: frozenset[int] = frozenset()
    """Calls that wait for nothing any more."""
    lasts: Mapping[int, float] = field(default_factory=dict)
    """Work of the device with its new length; what has none is not launched at all."""


def gain_without(case: Case, cause: str) -> float | None:
    """How many times as fast the faulty job is without a cause of the recording's own; none where it has none."""
    taken = OWN[cause](case.job.unit) if cause in OWN else None
    if taken is None:
        return None
    return time_of(case.job, case.change) / time_of(*without(case.job, case.change, taken))


def without(job: Job, change: Change, taken: Taken) -> tuple[Job, Change]:
    """A job and what was done to it, with something taken out of each step."""
    unit, at = job.unit, _map(taken.spans)

    def called(number: int, call: Call) -> Call:
        wait = NOTHING if number in taken.unwaited else call.wait
        return replace(call, begin=at(call.begin), end=at(call.end), wait=wait)

    def timed(number: int, op: Op) -> Op:
        lasts = taken.lasts.get(number)
        if lasts is None:
            return op
        return (
            replace(op, lasts=lasts) if lasts else replace(op, lasts=0.0, lead=0.0, gap=0.0, after=(), collective=False)
        )

    calls = tuple(called(number, call) for number, call in enumerate(unit.calls))
    ops = tuple(timed(number, op) for number, op in enumerate(unit.ops))
    before = {id(new): old for new, old in zip(ops, unit.ops, strict=True)}
    inserts = tuple(replace(insert, at=at(insert.at)) for insert in change.inserts)
    kept = replace(change, inserts=inserts, ops=lambda op, rank, step: change.ops(before.get(id(op), op), rank, step))
    return replace(job, unit=replace(unit, calls=calls, ops=ops, length=at(unit.length))), kept


def _map(spans: Spans) -> Callable[[float], float]:
    """From a time of the host to what it is without some spans."""
    ordered = sorted(spans)
    begins = [begin for begin, _ in ordered]
    total = [0.0]
    for begin, end in ordered:
        total.append(total[-1] + (end - begin) * (1 - _REST))

    def at(time: float) -> float:
        index = bisect_right(begins, time)
        if index == 0:
            return time
        begin, end = ordered[index - 1]
        return time - total[index - 1] - (min(time, end) - begin) * (1 - _REST)

    return at


def broadcasts(unit: Unit) -> Taken | None:
    """Buffers that DistributedDataParallel joins, sends and copies back before a forward pass."""
    run: list[Event] = []
    runs = [run]
    for event in _outermost(event for event in unit.host if _category(event) in _OPERATORS[:2]):
        if str(event["name"]).startswith(_JOINS):
            run.append(event)
        elif run:
            runs.append(run := [])
    spans = tuple(
        (float(run[0]["ts"]), _end(run[-1])) for run in runs if any("broadcast" in str(event["name"]) for event in run)
    )
    gone = [call.op for call in unit.calls if call.op >= 0 and any(begin <= call.begin < end for begin, end in spans)]
    return Taken(spans, lasts=dict.fromkeys(gone, 0.0)) if spans else None


def products(unit: Unit) -> Taken | None:
    """Products in single precision, on a device whose tensor cores take half precision only."""
    if "V100" not in unit.device:
        return None
    found = {at: op.lasts * OF_FP32 for at, op in enumerate(unit.ops) if _PRODUCT.search(str(op.shown["name"]))}
    return Taken(lasts=found) if found else None


def python(unit: Unit) -> Taken | None:
    """Stretches in which no thread is in an operator, a call, a fetch or an optimizer."""
    until, found = 0.0, []
    inside = [(float(event["ts"]), _end(event)) for event in unit.host if _has_a_name(event)]
    for begin, end in [*sorted(inside), (unit.length, unit.length)]:
        if begin - until >= PYTHON_US:
            found.append((until, begin))
        until = max(until, end)
    return Taken(tuple(found)) if found else None


def pageable(unit: Unit) -> Taken | None:
    """Copies to the device from pageable memory: from pinned memory they take less and hold up nobody."""
    copies = _pageable(unit)
    calls = [at for at, call in enumerate(unit.calls) if call.op in copies or call.wait in copies]
    speed = pinned_speed(unit)
    lasts = {at: min(unit.ops[at].lasts, float(unit.ops[at].shown["args"]["bytes"]) / speed) for at in copies}
    return Taken(_waiting(unit, calls), frozenset(calls), lasts) if copies else None


def waits(unit: Unit) -> Taken | None:
    """Calls that wait for the device, but for those of pageable copies."""
    copies = _pageable(unit)
    calls = [
        at
        for at, call in enumerate(unit.calls)
        if call.wait != NOTHING and call.op not in copies and call.wait not in copies
    ]
    return Taken(_waiting(unit, calls), frozenset(calls)) if calls else None


def fetches(unit: Unit) -> Taken | None:
    """Batches that are made on the training thread."""
    found = [event for event in unit.host if event.get("ph") == "X" and str(event["name"]).startswith(_LOADER)]
    spans = tuple((float(event["ts"]), _end(event)) for event in _outermost(found))
    return Taken(spans) if spans else None


OWN: Mapping[str, Callable[[Unit], Taken | None]] = {
    "communication.buffer-broadcast": broadcasts,
    "compute.low-tensor-core": products,
    "host.pageable-copy": pageable,
    "host.python": python,
    "host.sync": waits,
    "input.synchronous-loader": fetches,
}
"""By the name of a cause: what a recording has of it.

No recording has calls of the allocator or collections. Launches are none either: a host that costs nothing makes up
for any fault of the host's, and says nothing of the recording.
"""


def _pageable(unit: Unit) -> frozenset[int]:
    return frozenset(at for at, op in enumerate(unit.ops) if "HtoD (Pageable" in str(op.shown["name"]))


def _waiting(unit: Unit, calls: Iterable[int]) -> Spans:
    """What calls last longer than they need to."""
    times = [(unit.calls[at].begin + RETURNS_US, unit.calls[at].end) for at in calls]
    return tuple((begin, end) for begin, end in times if end > begin)


def _outermost(events: Iterable[Event]) -> list[Event]:
    """Events of the host that lie in none of the others."""
    found: list[Event] = []
    timed = (event for event in events if event.get("ph") == "X")
    for event in sorted(timed, key=lambda each: (each["ts"], -each["dur"])):
        if not found or event["ts"] >= _end(found[-1]):
            found.append(event)
    return found


def _has_a_name(event: Event) -> bool:
    named = _category(event) in _OPERATORS or str(event.get("name")).startswith(("enumerate", "Optimizer"))
    return event.get("ph") == "X" and named


def _category(event: Event) -> str:
    return str(event.get("cat")).lower()


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])
