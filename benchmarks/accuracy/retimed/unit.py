"""A step of a recording as calls of the host, work of the device, and what waits for what."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Event = dict[str, Any]

STEP = re.compile(r"^ProfilerStep\s*#(\d+)")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
_CALLS = ("cuda_runtime", "cuda_driver", "runtime")
_COLLECTIVE = re.compile("nccl|dpsk::ep::", re.IGNORECASE)
_INSIDE = re.compile("aten::|autograd::engine::evaluate|nccl:|c10d::|record_param_comms|fbgemm::|enumerate|Optimizer")
_WAITS_US = 30.0
"""A call that may wait for the device and is shorter does not."""
_LAUNCH_US = 2.0
"""What a device event lies idle at least before its start where it was the launch that came late."""
_LEAD_US = 3.0
"""From a launch's end to its work's start, at most, where the recording does not say."""
EVERYTHING = -1
"""A call waits for all that was launched before the step."""
NOTHING = -2


@dataclass(frozen=True, slots=True)
class Op:
    """Work of the device."""

    shown: Event
    stream: Any
    lasts: float
    lead: float
    """From the end of its call to its start, where nothing else holds it up."""
    gap: float
    """From the end of what ran before it on its stream."""
    after: tuple[tuple[int, float], ...] = ()
    """Work of other streams that it waits for, and how long after it may start."""
    collective: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the host that launches or waits."""

    begin: float
    end: float
    op: int = NOTHING
    wait: int = NOTHING
    tail: float = 0.0
    """From the end of what it waits for to its own."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A step; times in us from its beginning."""

    name: str
    host: tuple[Event, ...]
    around: tuple[Event, ...]
    """What begins before the step and ends after it, and what has no time."""
    calls: tuple[Call, ...]
    ops: tuple[Op, ...]
    length: float
    head: Mapping[str, Any]
    first: int
    """The number of the step."""
    main: tuple[Any, Any]
    free: tuple[tuple[float, tuple[Any, Any]], ...] = field(repr=False)
    """Instants at which no thread is in an operator or a call, and the thread that was last in one."""

    @property
    def old(self) -> bool:
        """Whether its categories are those of 2021."""
        return any(event.get("cat") == "Runtime" for event in self.host)

    @property
    def busy(self) -> float:
        """Work of the device in all."""
        return sum(op.lasts for op in self.ops)

    @property
    def device(self) -> str:
        """The device's name."""
        return str(self.head["deviceProperties"][0]["name"])


def load(path: Path) -> Mapping[str, Any]:
    """A recording."""
    data = path.read_bytes()
    read: Mapping[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return read


def steps(trace: Mapping[str, Any]) -> list[Event]:
    """The marks of its steps on the host, in order."""
    marks = [event for event in trace["traceEvents"] if event.get("ph") == "X" and STEP.match(str(event.get("name")))]
    return sorted((each for each in marks if each.get("cat") != "gpu_user_annotation"), key=lambda each: each["ts"])


def read(name: str, trace: Mapping[str, Any], mark: Event) -> Unit:
    """The step of a mark."""
    events: Sequence[Event] = trace["traceEvents"]
    begin, end = mark["ts"], mark["ts"] + mark["dur"]
    later = [each["ts"] for each in steps(trace) if each["ts"] > begin]
    end = min([*later, end + 100.0])
    timed = [event for event in events if event.get("ph") == "X" and isinstance(event.get("ts"), int | float)]
    device = [event for event in timed if str(event.get("cat")).lower() in _DEVICE]
    cut = [
        {**event, "ts": event["ts"] - begin}
        for event in events
        if isinstance(event.get("ts"), int | float) and begin <= event["ts"] < end and _of_host(event)
    ]
    host = [event if event.get("ph") != "X" else {**event, "dur": _clipped(event, end - begin)} for event in cut]
    around = [event for event in events if event.get("ph") == "M"]
    around += [
        event
        for event in timed
        if event["ts"] < begin and event["ts"] + (event.get("dur") or 0) > end and event.get("cat") == "python_function"
    ]
    calls, ops = _program(host, timed, device, begin)
    number = STEP.match(str(mark["name"]))
    head = {key: value for key, value in trace.items() if key != "traceEvents"}
    main = (mark["pid"], mark["tid"])
    return Unit(
        name,
        tuple(host),
        tuple(around),
        tuple(calls),
        tuple(ops),
        end - begin,
        head,
        int(number[1]) if number else 0,
        main,
        tuple(_free(host, main)),
    )


def _clipped(event: Event, length: float) -> float:
    lasts = float(event.get("dur") or 0)
    return min(lasts, length - float(event["ts"]))


def _of_host(event: Event) -> bool:
    """Waits for events are left out: which event it was is not recorded, so that a replay cannot keep them true."""
    category = str(event.get("cat")).lower()
    if (
        event.get("name") == "cudaEventSynchronize"
        or category in _DEVICE
        or category in ("gpu_user_annotation", "ac2g", "async", "async_cpu_to_gpu", "trace")
    ):
        return False
    return event.get("ph") in {"X", "i", "s", "f"} and not str(event.get("name")).startswith(
        ("Record Window", "Iterat")
    )


def _program(
    host: Sequence[Event], timed: Sequence[Event], device: Sequence[Event], begin: float
) -> tuple[list[Call], list[Op]]:
    launched = sorted((each for each in host if _is_call(each)), key=lambda each: (each["ts"], -each["dur"]))
    by_correlation: dict[Any, list[Event]] = {}
    for event in device:
        by_correlation.setdefault(event["args"].get("correlation"), []).append(event)
    before = _ended_before(timed, by_correlation, begin)
    calls: list[Call] = []
    raw: list[tuple[Event, float, list[int]]] = []
    last: dict[Any, int] = {}
    waits = 0
    for call in launched:
        found = by_correlation.get(call["args"].get("correlation"), [])
        if "StreamWaitEvent" in call["name"]:
            waits = len(raw) or 1
        number = NOTHING
        for event in found[:1]:
            start = event["ts"] - begin
            others = [at for stream, at in last.items() if stream != _stream(event) and waits]
            after = [at for at in others if _end(raw[at][0]) - begin <= start + 1]
            number, waits = len(raw), 0
            raw.append((event, float(call["ts"] + call["dur"]), after))
            last[_stream(event)] = number
        wait, tail = NOTHING, 0.0
        if not found or "DtoD" not in str(found[0]["name"]):
            wait, tail = _waited(call, raw, before, begin)
        calls.append(Call(float(call["ts"]), float(call["ts"] + call["dur"]), number, wait, tail))
    return calls, _ops(raw, begin)


def _ended_before(timed: Sequence[Event], by_correlation: Mapping[Any, list[Event]], begin: float) -> list[float]:
    """When work ended that was launched before the step, from the step's beginning."""
    return [
        _end(event) - begin
        for call in timed
        if _is_call(call) and call["ts"] < begin
        for event in by_correlation.get(call["args"].get("correlation"), [])
    ]


def _is_call(event: Event) -> bool:
    return event.get("ph") == "X" and str(event.get("cat")).lower() in _CALLS


def _stream(event: Event) -> Any:
    return event["args"].get("stream", event["tid"])


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def _waited(
    call: Event, raw: Sequence[tuple[Event, float, list[int]]], before: Sequence[float], begin: float
) -> tuple[int, float]:
    """What a call waited for, and how long after the end of that it lasted."""
    blocks = "Synchronize" in call["name"]
    if not blocks and (call["dur"] < _WAITS_US or "Memcpy" not in call["name"]):
        return NOTHING, 0.0
    first, last = call["ts"], call["ts"] + call["dur"]
    ended = [(_end(event) - begin, at) for at, (event, _, _) in enumerate(raw)]
    ended += [(at, EVERYTHING) for at in before]
    latest = max((each for each in ended if (blocks or first < each[0]) and each[0] <= last + 1), default=None)
    if latest is None:  # it waited for what is not in the recording
        return (EVERYTHING, min(3.0, call["dur"])) if blocks else (NOTHING, 0.0)
    # a call that came when all was done waits all the same where it is not: it returns soon after
    return latest[1], last - latest[0] if latest[0] > first else min(3.0, call["dur"])


def _ops(raw: Sequence[tuple[Event, float, list[int]]], begin: float) -> list[Op]:
    known: list[tuple[float, float, bool]] = []
    previous: dict[Any, float] = {}
    for event, _, after in raw:
        start = event["ts"] - begin
        held = max([_end(raw[at][0]) - begin for at in after] + [previous.get(_stream(event), -1e18)])
        known.append((start, held, start - held > _LAUNCH_US))
        previous[_stream(event)] = _end(event) - begin
    late = [start - end for (start, _, by_launch), (_, end, _) in zip(known, raw, strict=True) if by_launch]
    # where the device is always behind, hardly any launch says how soon its work could have begun
    typical = min(_LEAD_US, statistics.median(late) if len(late) > len(raw) / 20 else _LEAD_US)
    ops = []
    for (start, held, by_launch), (event, call_end, after) in zip(known, raw, strict=True):
        lead = start - call_end
        lead = min(lead, typical + 20.0) if by_launch else min(lead, typical)
        gap = 1.0 if by_launch else max(0.0, start - held)
        collective = bool(_COLLECTIVE.search(str(event["name"])))
        edges = tuple((at, gap) for at in after)
        ops.append(Op(event, _stream(event), float(event["dur"]), lead, gap, edges, collective))
    return ops


def _free(host: Sequence[Event], main: tuple[Any, Any]) -> list[tuple[float, tuple[Any, Any]]]:
    inside = sorted(
        (
            (event["ts"], event["ts"] + event["dur"], (event["pid"], event["tid"]))
            for event in host
            if event.get("ph") == "X" and (_INSIDE.match(str(event["name"])) or _is_call(event))
        ),
        key=lambda each: each[:2],
    )
    found: list[tuple[float, tuple[Any, Any]]] = []
    until, thread = 0.0, main
    for begin, end, of in inside:
        if begin - until >= 2.0:
            found.append(((begin + until) / 2, thread))
        if end > until:
            until, thread = end, of
    return found


def of_free(unit: Unit, place: float, of: tuple[Any, Any] | None = None) -> tuple[float, tuple[Any, Any]]:
    """The free instant next to a place in the step, of a thread or of any."""
    free = [each for each in unit.free if of is None or each[1] == of] or list(unit.free)
    times = [at for at, _ in free]
    return free[min(bisect_right(times, place * unit.length), len(times) - 1)]


def faster(unit: Unit, times: float) -> Unit:
    """A step with a host that is so many times as fast."""

    def moved(event: Event) -> Event:
        made = {**event, "ts": event["ts"] / times}
        return made if event.get("dur") is None else {**made, "dur": event["dur"] / times}

    calls = tuple(replace(call, begin=call.begin / times, end=call.end / times) for call in unit.calls)
    free = tuple((at / times, thread) for at, thread in unit.free)
    host = tuple(map(moved, unit.host))
    return replace(unit, host=host, calls=calls, length=unit.length / times, free=free)


def tight(unit: Unit, share: float) -> Unit:
    """A step of a job that its device bounds: nothing waits, and the host needs but a share of the device's time."""
    calls = tuple(replace(call, wait=NOTHING) for call in unit.calls)
    waited = {index for index, call in enumerate(unit.calls) if call.wait != NOTHING}
    shrunk, host = _without(unit, [unit.calls[index] for index in waited], calls)
    ops = tuple(_pinned(op) for op in unit.ops)
    # a call that does not wait for what is not done yet would be no recording of any machine
    kept = tuple(event for event in host[0] if "Synchronize" not in str(event.get("name")))
    quick = replace(unit, calls=shrunk, host=kept, length=host[1], free=host[2], ops=ops)
    streams: dict[Any, float] = {}
    for op in quick.ops:
        streams[op.stream] = streams.get(op.stream, 0.0) + op.lasts
    return faster(quick, max(1.0, quick.length / (share * max(streams.values()))))


def _pinned(op: Op) -> Op:
    name = str(op.shown["name"])
    if "Pageable" not in name:
        return op
    lasts = min(op.lasts, float(op.shown["args"].get("bytes", 0)) / 1.1e4 + 2.0)
    return replace(op, shown={**op.shown, "name": name.replace("Pageable", "Pinned")}, lasts=lasts)


def _without(
    unit: Unit, waits: Sequence[Call], calls: Sequence[Call]
) -> tuple[tuple[Call, ...], tuple[tuple[Event, ...], float, tuple[tuple[float, tuple[Any, Any]], ...]]]:
    """Times with calls cut to a few us."""
    cuts = sorted((call.begin + 4.0, max(0.0, call.end - call.begin - 4.0)) for call in waits)
    starts = [at for at, _ in cuts]
    total = [0.0]
    for _, less in cuts:
        total.append(total[-1] + less)

    def at(time: float) -> float:
        index = bisect_right(starts, time)
        if index == 0:
            return time
        begin, less = cuts[index - 1]
        return max(begin - total[index - 1], time - total[index - 1] - min(less, time - begin))

    def moved(event: Event) -> Event:
        begin = at(event["ts"])
        made = {**event, "ts": begin}
        return made if event.get("dur") is None else {**made, "dur": at(event["ts"] + event["dur"]) - begin}

    shorter = tuple(replace(call, begin=at(call.begin), end=at(call.end)) for call in calls)
    free = tuple((at(each), thread) for each, thread in unit.free)
    return shorter, (tuple(map(moved, unit.host)), at(unit.length), free)
