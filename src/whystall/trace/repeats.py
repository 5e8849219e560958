"""Steps of a recording without marks: the same kernels are launched in the same order, again and again.

A loop without marks (a benchmark, a server's forward passes, a script that calls a model) shows in its launches: the
names of its kernels repeat with a period, to the recording's last launch. The layers of one pass repeat as well. So a
step needs a sign of its own: layers repeat within it, or a module's outermost call begins with it, or the host copies
or waits where it begins. Its boundaries lie in no operator and in no module's call. Where nothing ran on a device,
outermost operators stand for kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.columns import codes, matching
from whystall.trace.link import rows_of
from whystall.vocabulary.copies import TO_DEVICE
from whystall.vocabulary.runtime_calls import is_call

_LEAST_REPEATS: Final = 3
# A pass of a model launches more than this; fewer are an element of a loop within it.
_LEAST_PERIOD: Final = 8
# A thread that prepares the next step for less than this share of a step does so between two steps.
_LEAST_LEAD: Final = 0.1
_MOSTLY: Final = 0.9
_COMPARED: Final = 64
_MOST_TRIED: Final = 256
_MOST_LAUNCHES: Final = 1 << 20
_NONE: Final = -1

_Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Launches:
    """Launches in order of time: when, of what, on which thread, and the outermost operator and module around each."""

    ts_ns: _Rows
    token: _Rows
    thread: _Rows
    operator: _Rows
    module: _Rows
    end_ns: _Rows


@dataclass(frozen=True, slots=True)
class Repeats:
    """Steps by repetition: when each begins, when the last one ends, and their thread."""

    start_ns: _Rows
    end_ns: int
    thread: int


def repeated_launches(tables: dict[str, pl.DataFrame]) -> Repeats | None:
    """The stretches of a recording that launch the same again and again up to its end, if there are three or more."""
    launches = _of_kernels(tables) if len(tables["device_events"]) else _of_operators(tables)
    if launches is None or len(launches.token) < _LEAST_REPEATS * _LEAST_PERIOD:
        return None
    period, covered = _period(launches.token[-_MOST_LAUNCHES:])
    if period < _LEAST_PERIOD or covered < _LEAST_REPEATS * period:
        return None
    total = len(launches.token)
    first = np.arange(total - covered // period * period, total, period)
    root = launches.operator[first]
    start = launches.ts_ns[first].copy()
    start[root != _NONE] = tables["operators"]["ts_ns"].to_numpy()[root[root != _NONE]]
    follow = bool(np.all(np.diff(start) > 0)) and bool(np.all(launches.thread[first] == launches.thread[first[0]]))
    if not (follow and _are_apart(launches, first) and _is_pass(tables, launches, first, period)):
        return None
    thread = int(launches.thread[first[0]])
    start = _with_its_preparation(tables, start, thread)
    return Repeats(start, _end(tables, start, int(launches.end_ns[launches.thread == thread].max()), thread), thread)


def _are_apart(launches: _Launches, first: _Rows) -> bool:
    """Whether no boundary lies in an operator or in a module's call."""
    after = first[first > 0]
    return not any(
        np.any((around[after - 1] == around[after]) & (around[after] != _NONE))
        for around in (launches.operator, launches.module)
    )


def _is_pass(tables: dict[str, pl.DataFrame], launches: _Launches, first: _Rows, period: int) -> bool:
    """Whether what repeats is a pass of a model, and no layer of one."""
    if np.all(launches.module[first] != _NONE) or _has_layers(launches.token[-period:]):
        return True
    calls = tables["runtime_calls"]
    hands_over = matching(calls["name"], lambda name: is_call(name, "sync", "copy"))
    own = hands_over & (calls["thread"].to_numpy() == launches.thread[first[0]])
    at = calls["ts_ns"].to_numpy()[own]
    begin, end = launches.ts_ns[first[first > 0] - 1], launches.ts_ns[first[first > 0]]
    return bool(np.all(np.searchsorted(at, begin, side="right") < np.searchsorted(at, end)))


def _has_layers(token: _Rows) -> bool:
    """Whether half of a sequence or more is one stretch that repeats three times or more."""
    middle = len(token) // 2  # such a stretch holds it: only distances at which it recurs are tried
    distances = np.abs(np.flatnonzero(token == token[middle]) - middle)
    tried = np.unique(distances[(distances >= _LEAST_PERIOD) & (distances <= len(token) // _LEAST_REPEATS)])
    for one in tried[:_MOST_TRIED].tolist():
        same = np.append(token[one:] == token[:-one], np.False_)
        ends = np.flatnonzero(~same)
        longest = int(np.diff(ends, prepend=-1).max()) - 1 + one
        if longest >= _LEAST_REPEATS * one and 2 * longest >= len(token):
            return True
    return False


def _with_its_preparation(tables: dict[str, pl.DataFrame], start: _Rows, thread: int) -> _Rows:
    """When steps begin with their thread's work behind the last call that used the device, up to the first launch.

    Copies to the device belong to that work.
    """
    calls, operators, events = tables["runtime_calls"], tables["operators"], tables["device_events"]
    outer = _outermost(rows_of(calls["operator"]), rows_of(operators["parent"]))
    brings = matching(events["name"], lambda name: any(part in name for part in TO_DEVICE))
    bringing = np.zeros(len(calls) + 1, np.bool_)
    bringing[rows_of(events["launch"])[brings]] = True
    within = np.isin(outer, outer[bringing[:-1]]) & (outer != _NONE)
    own = np.flatnonzero((calls["thread"].to_numpy() == thread) & ~bringing[:-1] & ~within)
    begin, outer = calls["ts_ns"].to_numpy()[own], outer[own]
    operator_end = np.append((operators["ts_ns"] + operators["duration_ns"]).to_numpy(), 0)
    end = np.maximum(begin + calls["duration_ns"].to_numpy()[own], operator_end[outer])
    order = np.argsort(begin, kind="stable")
    until = np.append(0, np.maximum.accumulate(end[order]))[np.searchsorted(begin[order], start)]
    lead = start[1:] - until[1:]
    usual = int(np.median(lead))
    recorded = operators["ts_ns"].to_numpy()[operators["thread"].to_numpy() == thread]
    known = len(recorded) > 0 and int(recorded.min()) <= start[0] - _MOSTLY * usual
    if usual < _LEAST_LEAD * float(np.median(np.diff(start))) or not known or (lead < 0).any():
        return start
    return np.append(max(int(start[0]) - usual, int(recorded.min())), until[1:])


def _end(tables: dict[str, pl.DataFrame], start: _Rows, launched: int, thread: int) -> int:
    """The end of the last step: its thread waits or copies after its last launch, but no longer than usual.

    A final wait for the whole loop belongs to no step.
    """
    calls = tables["runtime_calls"].filter(pl.col("thread") == thread)
    last = int((calls["ts_ns"] + calls["duration_ns"]).max() or 0)  # type: ignore[arg-type]
    return max(launched, min(last, int(start[-1]) + int(np.median(np.diff(start)))))


def _of_kernels(tables: dict[str, pl.DataFrame]) -> _Launches | None:
    """The launches of kernels, or none where the last launch's kernel is missing: then the end is not the loop's."""
    events, calls, functions = tables["device_events"], tables["runtime_calls"], tables["python_functions"]
    launch = rows_of(events["launch"]).astype(np.int64)
    known = np.flatnonzero((launch >= 0) & (events["kind"] == "kernel").to_numpy())
    if not len(known):
        return None
    call_ts = calls["ts_ns"].to_numpy()
    launching = np.flatnonzero(matching(calls["name"], lambda name: is_call(name, "kernel", "graph")))
    if len(launching) and call_ts[launching].max() > call_ts[launch[known]].max():
        return None
    call = launch[known]
    order = np.lexsort((events["ts_ns"].to_numpy()[known], call_ts[call]))
    call = call[order]
    operator = _outermost(rows_of(calls["operator"])[call], rows_of(tables["operators"]["parent"]))
    operator_end = (tables["operators"]["ts_ns"] + tables["operators"]["duration_ns"]).to_numpy()
    end = call_ts[call] + calls["duration_ns"].to_numpy()[call]
    end[operator != _NONE] = np.maximum(end, np.append(operator_end, 0)[operator])[operator != _NONE]
    return _Launches(
        ts_ns=call_ts[call],
        token=codes(events["name"])[known][order].astype(np.int64),
        thread=calls["thread"].to_numpy()[call].astype(np.int64),
        operator=operator,
        module=_outermost_module(rows_of(calls["frame"])[call], functions),
        end_ns=end,
    )


def _of_operators(tables: dict[str, pl.DataFrame]) -> _Launches | None:
    """The outermost operators of the thread that spends most time in them."""
    operators = tables["operators"]
    outer = np.flatnonzero(rows_of(operators["parent"]) < 0)
    if not len(outer):
        return None
    spent = operators[outer].group_by("thread").agg(pl.col("duration_ns").sum()).sort("duration_ns", "thread")
    outer = outer[operators["thread"].to_numpy()[outer] == spent["thread"][-1]]
    outer = outer[np.argsort(operators["ts_ns"].to_numpy()[outer], kind="stable")]
    start = operators["ts_ns"].to_numpy()[outer]
    return _Launches(
        ts_ns=start,
        token=codes(operators["name"])[outer].astype(np.int64),
        thread=operators["thread"].to_numpy()[outer].astype(np.int64),
        operator=outer.astype(np.int64),
        module=_outermost_module(rows_of(operators["frame"])[outer], tables["python_functions"]),
        end_ns=start + operators["duration_ns"].to_numpy()[outer],
    )


def _outermost(rows: NDArray[np.int32], parent: NDArray[np.int32]) -> _Rows:
    """Per row its outermost ancestor, or -1 where there is no row."""
    out = rows.astype(np.int64)
    above = np.append(parent.astype(np.int64), _NONE)
    while (further := above[out] >= 0).any():
        out = np.where(further, above[out], out)
    return out


def _outermost_module(frame: NDArray[np.int32], functions: pl.DataFrame) -> _Rows:
    """Per row of the Python calls the outermost module's call around it, or -1."""
    module = np.append(rows_of(functions["module"]).astype(np.int64), _NONE)  # the innermost one, itself included
    parent = np.append(rows_of(functions["parent"]).astype(np.int64), _NONE)
    out = module[frame]
    while (further := module[parent[out]] >= 0).any():
        out = np.where(further, module[parent[out]], out)
    return out


def _period(token: _Rows) -> tuple[int, int]:
    """The period with which a sequence repeats up to its end, and how many of its last tokens do; (0, 0) without one.

    It is the one that covers most, then the shortest. Candidates are the distances at which the last tokens
    recur. One that covers more than the best so far repeats the token before the stretch of that one, too.
    """
    total = len(token)
    distance = total - 1 - np.flatnonzero(token[:-1] == token[-1])[::-1]
    distance = distance[distance <= total // _LEAST_REPEATS]
    for back in range(1, min(_COMPARED, total // _LEAST_REPEATS)):
        same = token[total - 1 - back - distance] == token[total - 1 - back]
        distance = distance[same | (distance * (_LEAST_REPEATS - 1) <= back)]
    best = (0, 0)
    for _ in range(_MOST_TRIED):
        if not len(distance):
            break
        one, distance = int(distance[0]), distance[1:]
        differs = np.flatnonzero(token[one:] != token[:-one])
        covered = total - (int(differs[-1]) + 1 if len(differs) else 0)
        if covered <= best[1] or covered < _LEAST_REPEATS * one:
            continue
        best, before = (one, covered), total - covered - 1
        if before < 0:
            break
        within = np.minimum(distance, covered)
        distance = distance[(distance > covered) | (token[before + within] == token[before])]
    return best
