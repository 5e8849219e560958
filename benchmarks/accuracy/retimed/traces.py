"""A replayed job as traces, one a rank."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.retimed.replay import Job, Rank
from benchmarks.accuracy.retimed.unit import STEP, Event, Op, Unit

_IDS = ("External id", "external id", "correlation", "Python id", "Python parent id", "Ev Idx", "Record function id")
_APART = 10_000_000
_FRESH = 5_000_000


def write(
    out: Path,
    job: Job,
    ranks: Sequence[Rank],
    clock: Callable[[int, float], float] | None = None,
    prefix: Sequence[Event] = (),
) -> list[Path]:
    """The files of a job; ``clock`` says what a rank's clock shows at a time, ``prefix`` what was before time 0."""
    paths = []
    out.mkdir(parents=True, exist_ok=True)
    for number, rank in enumerate(ranks):
        head = dict(job.unit.head)
        if job.ranks > 1:
            head["distributedInfo"] = _distributed(head.get("distributedInfo"), number, job.ranks)
        events = [*_events(job, rank, number, prefix)]
        if clock is not None:
            _shown_by(clock, number, events)
        paths.append(out / f"rank{number}.json")
        paths[-1].write_text(json.dumps({**head, "traceEvents": events}), "utf-8")
    return paths


def _shown_by(clock: Callable[[int, float], float], number: int, events: Sequence[Event]) -> None:
    for event in events:
        if event["ph"] == "M":
            continue
        if "dur" in event:
            event["dur"] = round(clock(number, event["ts"] + event["dur"]) - clock(number, event["ts"]), 3)
        event["ts"] = round(clock(number, event["ts"]), 3)


def _distributed(known: Any, rank: int, size: int) -> dict[str, Any]:
    made: dict[str, Any] = dict(known) if isinstance(known, Mapping) else {"backend": "nccl"}
    made |= {"rank": rank, "world_size": size}
    if made.get("pg_config"):
        made["pg_config"] = [{**each, "pg_size": size, "ranks": [*range(size)]} for each in made["pg_config"]]
    return made


def _events(job: Job, rank: Rank, number: int, prefix: Sequence[Event]) -> list[Event]:
    unit = job.unit
    host, device = unit.main[0], unit.ops[0].shown["pid"]

    def own(pid: Any) -> Any:
        if job.ranks == 1:
            return pid
        if pid == host and isinstance(pid, int):
            return pid + number
        return number if pid == device else pid

    events: list[Event] = [{**event, "pid": own(event["pid"])} for event in prefix]
    first = min([event["ts"] for event in prefix], default=0.0) - 50.0
    last = max(rank.done)
    for event in unit.around:
        made = {**event, "pid": own(event["pid"])}
        events.append(made if event["ph"] == "M" else {**made, "ts": first, "dur": round(last - first + 50, 3)})
    around = {event["args"].get("Python id") for event in unit.around if event["ph"] == "X"}
    for step in range(job.steps):
        events += _host(unit, rank, step, own, around, job.ranks)
    events += _device(unit, rank, own, job.ranks, number)
    events += _inserted(unit, rank, own, job.ranks)
    for event in events:
        if "ts" in event and event["ph"] != "M":
            event["ts"] = round(event["ts"] - first + 1_000_000.0, 3)
    return events


def _host(unit: Unit, rank: Rank, step: int, own: Callable[[Any], Any], around: set[Any], ranks: int) -> list[Event]:
    start, factor, olds, shifts = rank.starts[step], rank.factors[step], rank.olds, rank.shifts

    def at(time: float) -> float:
        old = start + time * factor
        return old + shifts[bisect_right(olds, old + 1e-7) - 1]

    found = []
    for event in unit.host:
        made = {**event, "ts": at(event["ts"]), "pid": own(event["pid"])}
        if event.get("dur") is not None:
            made["dur"] = round(at(event["ts"] + event["dur"]) - made["ts"], 3)
        if (number := STEP.match(str(event.get("name")))) is not None:
            made["name"] = f"ProfilerStep#{int(number[1]) + step}"
        if "id" in event:
            made["id"] = int(event["id"]) + step * _APART
        if event.get("args"):
            made["args"] = _args(event["args"], step, around, ranks)
        found.append(made)
    return found


def _args(args: Event, step: int, around: set[Any], ranks: int) -> Event:
    made = {
        key: value + step * _APART if key in _IDS and isinstance(value, int) and value not in around else value
        for key, value in args.items()
    }
    return _grouped(made, ranks)


def _grouped(args: Event, ranks: int) -> Event:
    if ranks > 1 and "Group size" in args:
        args |= {"Group size": ranks, "Process Group Ranks": str([*range(ranks)])}
    return args


def _device(unit: Unit, rank: Rank, own: Callable[[Any], Any], ranks: int, number: int) -> list[Event]:
    fresh = {place for _, _, _, _, place in rank.inserted}
    found = []
    for place, (step, op, _, start, end) in enumerate(rank.ops):
        made = {**op.shown, "ts": start, "dur": round(end - start, 3), "pid": own(op.shown["pid"])}
        made["args"] = _args(op.shown["args"], 0 if place in fresh and _is_fresh(op, unit) else step, set(), ranks)
        if place in fresh and _is_fresh(op, unit):
            made["args"]["correlation"] = _correlation(place)
        if ranks > 1:
            made["args"]["device"] = number
        if "bytes" in made["args"] and end > start:
            made["args"]["memory bandwidth (GB/s)"] = made["args"]["bytes"] / (end - start) / 1e3
        found.append(made)
    return found


def _is_fresh(op: Op, unit: Unit) -> bool:
    del unit
    return "correlation" not in op.shown["args"]


def _correlation(place: int) -> int:
    return 900 * _APART + _FRESH + place


def _inserted(unit: Unit, rank: Rank, own: Callable[[Any], Any], ranks: int) -> list[Event]:
    found = []
    for _, insert, begin, end, place in rank.inserted:
        pid, tid = insert.thread or unit.main
        for depth, event in enumerate(insert.shown):
            inside = min(0.2 * depth, (end - begin) / 4)
            args = _grouped({**event.get("args", {})}, ranks)
            if event.get("launches"):
                args["correlation"] = _correlation(place)
            made = {"ph": "X", "cat": event["cat"], "name": event["name"], "pid": own(pid), "tid": tid, "args": args}
            found.append({**made, "ts": begin + inside, "dur": round(max(0.0, end - begin - 2 * inside), 3)})
    return found
