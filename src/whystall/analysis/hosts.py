"""The host: the activity of each thread, and its runtime calls."""

from __future__ import annotations

import re
from typing import Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState, call_state
from whystall.analysis.results import Host, HostCall, HostThread
from whystall.trace.columns import codes, distinct, matching, rows_by_value
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.autograd import ENGINE
from whystall.vocabulary.runtime_calls import is_call

Role = Literal["training", "backward", "other"]
CallKind = Literal["launch", "sync", "allocator", "graph", "other"]


def host_result(trace: Trace, rank: int) -> Host:
    """Threads with host events, the busiest first, and runtime calls by name."""
    return Host(threads=_threads(trace, rank), calls=_calls(trace, rank))


def training_thread(trace: Trace) -> int | None:
    """The thread that runs the steps: the one with their marks, else the one with the most operator time.

    A thread on which autograd does nothing but run the backward pass works for another one.
    """
    if not trace.steps.is_empty():
        return int(trace.steps["thread"].mode().sort()[0])
    for table in (trace.operators, trace.annotations, trace.python_functions):
        if not table.is_empty():
            thread, place = np.unique(table["thread"].to_numpy(), return_inverse=True)
            spent = np.bincount(place, weights=table["self_ns"].to_numpy())
            working = np.isin(thread, list(_only_backward(trace)), invert=True)
            return int(thread[np.argmax(np.where(working, spent, -1.0) if working.any() else spent)])
    return None


# A few operators on autograd's device threads, such as those of hooks, lie outside its calls.
_MOSTLY_BACKWARD: Final = 0.9


def _only_backward(trace: Trace) -> set[int]:
    """The threads whose outermost operators belong to the backward pass: autograd has one for each device."""
    operators = trace.operators
    outermost = operators["parent"].is_null().to_numpy()
    named = matching(operators["name"], lambda name: name.startswith(ENGINE) or _NODE.search(name))
    backward = named | (operators["forward_thread"].fill_null(0) > 0).to_numpy()
    thread, duration = operators["thread"].to_numpy(), operators["duration_ns"].to_numpy()
    out = set()
    for one in backward_threads(trace):
        own = outermost & (thread == one)
        if duration[own & backward].sum() >= _MOSTLY_BACKWARD * max(int(duration[own].sum()), 1):
            out.add(one)
    return out


_NODE: Final = re.compile(r"^[A-Z]\w*Backward\d*$|\bAccumulateGrad$")


def backward_threads(trace: Trace) -> set[int]:
    """Threads on which the autograd engine runs.

    They run its operators; before 2022, operators that name the thread of their forward; else, operators that are named
    after autograd's nodes.
    """
    engine = matching(trace.operators["name"], lambda name: name.startswith(ENGINE))
    backward = engine | (trace.operators["forward_thread"].fill_null(0) > 0).to_numpy()
    if not backward.any():
        backward = matching(trace.operators["name"], _NODE.search)
    return {int(thread) for thread in trace.operators.filter(pl.Series(backward))["thread"].unique().to_list()}


# Threads with fewer calls do not show whether they take turns.
_FEWEST_CALLS: Final = 20
# Threads that know nothing of each other change places after every other call or so.
_IN_TURNS: Final = 0.1


def taking_turns(trace: Trace) -> tuple[int, frozenset[int]] | None:
    """The thread that hands over to others, and those, where a trace shows only calls of the runtime.

    Such a trace does not show that ``backward()`` waits for autograd's thread. Threads that make many calls each before
    another one makes any, and never at the same time, wait for each other. ``None`` where none do.
    """
    calls = trace.runtime_calls
    if calls.is_empty() or not (trace.operators.is_empty() and trace.annotations.is_empty()):
        return None
    calls = calls.sort("ts_ns", maintain_order=True)
    thread, begin = calls["thread"].to_numpy(), calls["ts_ns"].to_numpy()
    end = begin + calls["duration_ns"].to_numpy()
    known, count = np.unique(thread, return_counts=True)
    busy = known[count >= _FEWEST_CALLS]
    if len(busy) < 2:
        return None
    first = int(thread[np.isin(thread, busy)][0])
    others = [int(one) for one in busy if one != first and _in_turns(thread, begin, end, (first, int(one)))]
    return (first, frozenset(others)) if others else None


def _in_turns(
    thread: NDArray[np.int32], begin: NDArray[np.int64], end: NDArray[np.int64], pair: tuple[int, int]
) -> bool:
    """Whether two threads take turns, by their calls in order of time."""
    own = np.isin(thread, pair)
    of_first = thread[own] == pair[0]
    changes = np.flatnonzero(of_first[1:] != of_first[:-1])
    by_chance = 2 * int(of_first.sum()) * int((~of_first).sum()) / len(of_first)
    apart = begin[own][changes + 1] >= end[own][changes]
    return len(changes) <= _IN_TURNS * by_chance and bool(apart.all())


def _threads(trace: Trace, rank: int) -> list[HostThread]:
    count = len(trace.threads)
    sums = {
        name: _per_thread(getattr(trace, name), count)
        for name in ("operators", "runtime_calls", "python_functions", "annotations")
    }
    launch = rows_of(trace.device_events["launch"])
    launched = np.zeros(len(trace.runtime_calls), np.bool_)
    launched[launch[launch >= 0]] = True
    launches = np.bincount(trace.runtime_calls["thread"].to_numpy()[launched], minlength=count)
    training, backward = training_thread(trace), backward_threads(trace)
    out = []
    for thread in range(count):
        if not any(values[thread] for values in sums.values()) and not launches[thread]:
            continue
        pid, tid, name = trace.threads.row(thread)
        role: Role = "training" if thread == training else "backward" if thread in backward else "other"
        out.append(
            HostThread(
                rank=rank,
                pid=_number(pid),
                tid=_number(tid),
                name=name,
                role=role,
                operator_self_ns=int(sums["operators"][thread]),
                runtime_ns=int(sums["runtime_calls"][thread]),
                python_self_ns=int(sums["python_functions"][thread]),
                annotation_self_ns=int(sums["annotations"][thread]),
                launches=int(launches[thread]),
            )
        )
    return sorted(out, key=lambda row: (-row.launches, -row.operator_self_ns, str(row.tid)))


def _per_thread(table: pl.DataFrame, count: int) -> np.ndarray:
    out = np.zeros(count, np.int64)
    np.add.at(out, table["thread"].to_numpy(), table["self_ns"].to_numpy())
    return out


def _number(text: str | None) -> int | str:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else text or ""


def call_kind(name: str) -> CallKind:
    """The purpose of a runtime call, by its name."""
    state = call_state(name)
    if state is HostState.SYNC:
        return "sync"
    if state is HostState.ALLOCATOR:
        return "allocator"
    if is_call(name, "graph"):
        return "graph"
    return "launch" if is_call(name, "launch") else "other"


def _calls(trace: Trace, rank: int) -> list[HostCall]:
    """The calls by name, those that took longest first."""
    names, duration = trace.runtime_calls["name"], trace.runtime_calls["duration_ns"].to_numpy()
    by_name = {name: duration[rows] for name, rows in _rows_by_name(names).items()}
    return [
        HostCall(
            rank=rank,
            name=name,
            kind=call_kind(name),
            count=len(each),
            total_ns=int(each.sum()),
            mean_ns=round(int(each.sum()) / len(each)),
            max_ns=int(each.max()),
        )
        for name, each in sorted(by_name.items(), key=lambda item: (-int(item[1].sum()), item[0]))
    ]


def _rows_by_name(names: pl.Series) -> dict[str, NDArray[np.intp]]:
    texts = distinct(names)
    return {texts[code]: rows for code, rows in rows_by_value(codes(names)).items()}
