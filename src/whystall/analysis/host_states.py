"""The state of a host thread at each instant, in the words of the ledger."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import thread_states
from whystall.analysis.intervals import Timeline, merged_times
from whystall.analysis.iterator_waits import iterator_waits
from whystall.analysis.wholeness import shows_work_of_host
from whystall.trace.columns import codes, distinct, matching
from whystall.trace.link import HOST_TABLES
from whystall.trace.model import Trace
from whystall.vocabulary.runtime_calls import is_call


class HostState(IntEnum):
    """The innermost thing a thread was seen doing; later members outrank nothing, they are only names."""

    NONE = 0
    PYTHON = 1
    DISPATCH = 2
    LAUNCH = 3
    SYNC = 4
    ALLOCATOR = 5
    INPUT = 6
    GC = 7
    COMMUNICATION = 8


# Everything inside these takes their state: an operator inside the loader's `__next__` is input.
INHERITED_STATES: Final = np.isin(np.arange(len(HostState)), (HostState.INPUT, HostState.GC, HostState.COMMUNICATION))

INPUT_NAME: Final = re.compile(
    r"^enumerate\(DataLoader\)|^enumerate\(.*DataLoader|DataLoader.*__next__|"
    r"dataloader\.py\(\d+\): (__next__|__iter__|__del__|_get_iterator|_shutdown_workers)$|"
    r"^\[pl\].*train_dataloader_next"
)
_GC_NAME: Final = re.compile(r"^Python GC|<built-in (function|method) collect\b|^gc\.py\(\d+\)")
# Inductor marks the code that it made within the operator that calls it: on a CPU that code is the operator's work.
_COMPILED_CODE: Final = "## Call CompiledFxGraph"
_MESSAGE: Final = re.compile(r"^(gloo|mpi|ucc):(send|recv)")
# Operators over shared memory are vLLM's and SGLang's between processes on CPUs (`_C::shm_allreduce`).
COLLECTIVE_NAME: Final = re.compile(
    r"^(gloo|nccl|mpi|ucc|xccl):|^c10d::|^_c10d_functional::|^record_param_comms$|"
    r"^\w+::shm_(all_?reduce|all_?gather|gather|reduce_?scatter|broadcast|send|recv)"
)


@dataclass(frozen=True, slots=True)
class HostEvents:
    """All host events of a trace in one numbering, with the state that each stands for."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int32]
    state: NDArray[np.uint8]
    order: NDArray[np.uint32]
    thread_in_order: NDArray[np.int32]
    tells_python: bool
    """Whether a stretch without an event is Python."""

    def events_of(self, thread: int) -> NDArray[np.uint32]:
        """The events of ``thread``, by start, longest first."""
        first, last = np.searchsorted(self.thread_in_order, (thread, thread + 1))
        return self.order[first:last]

    def timeline(self, thread: int) -> Timeline:
        """The states of ``thread`` from its first event to the end of its last."""
        mine = self.events_of(thread)
        order = np.arange(len(mine), dtype=np.uint32)
        times, states = thread_states(self.start[mine], self.end[mine], order, self.state[mine], INHERITED_STATES)
        return Timeline(times, states)


def host_events(trace: Trace, *, collectives: bool) -> HostEvents:
    """The host events of a trace.

    ``collectives``: whether communication on the host counts as such, as it does on jobs without an accelerator;
    elsewhere those operators only launch it, as compiled code launches its kernels.
    """
    tables = [getattr(trace, name) for name in HOST_TABLES]
    thread = np.concatenate([table["thread"].to_numpy() for table in tables])
    start = np.concatenate([table["ts_ns"].to_numpy() for table in tables])
    duration = np.concatenate([table["duration_ns"].to_numpy() for table in tables])
    known = shows_work_of_host(trace)
    around = HostState.PYTHON if known else HostState.NONE
    states = {
        "operators": _states(trace.operators["name"], HostState.DISPATCH, collectives=collectives),
        "annotations": _states(trace.annotations["name"], around, collectives=collectives),
        "python_functions": _states(trace.python_functions["name"], HostState.PYTHON, collectives=False),
        "runtime_calls": _call_states(trace.runtime_calls["name"]),
    }
    states["python_functions"][waits_in_iterators(trace)] = HostState.INPUT
    order, end = trace.host_order, start + duration
    if collectives:
        order = order[~_marks_compiled_code(trace, len(thread))[order]]
        waiting = _begun_waiting(trace, start, end, thread)
        if waiting is not start:
            start = waiting
            order = order[np.lexsort((start[order] - end[order], start[order], thread[order]))]
    return HostEvents(
        start=start,
        end=end,
        thread=thread,
        state=np.concatenate([states[name] for name in HOST_TABLES]),
        order=order,
        thread_in_order=thread[order],
        tells_python=known,
    )


def waits_in_iterators(trace: Trace) -> NDArray[np.bool_]:
    """Which calls of Python functions wait for a batch in an iterator other than torch's loader."""
    return iterator_waits(trace, INPUT_NAME)


def _begun_waiting(
    trace: Trace, start: NDArray[np.int64], end: NDArray[np.int64], thread: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The beginnings of host events, those of messages moved to the end of the last operator within.

    torch writes a message of gloo's on the calling thread, from the call to its wait: the thread's compute meanwhile is
    no communication.
    """
    first = len(trace.operators)
    messages = first + np.flatnonzero(matching(trace.annotations["name"], lambda name: bool(_MESSAGE.match(name))))
    out = start
    for own in np.unique(thread[messages]).tolist():
        ends = np.sort(end[:first][thread[:first] == own])
        mine = messages[thread[messages] == own]
        last = np.searchsorted(ends, end[mine], side="right") - 1
        inside = (last >= 0) & (ends[np.maximum(last, 0)] > start[mine]) if len(ends) else np.zeros(len(mine), np.bool_)
        if inside.any():
            out = start.copy() if out is start else out
            out[mine[inside]] = ends[last[inside]]
    return out


def _marks_compiled_code(trace: Trace, events: int) -> NDArray[np.bool_]:
    """Which of the host events are such marks; the annotations stand behind the operators."""
    marks = np.zeros(events, np.bool_)
    first = sum(len(getattr(trace, name)) for name in HOST_TABLES[: HOST_TABLES.index("annotations")])
    mine = matching(trace.annotations["name"], lambda name: name.startswith(_COMPILED_CODE))
    marks[first : first + len(mine)] = mine
    return marks


def _states(names: pl.Series, otherwise: HostState, *, collectives: bool) -> NDArray[np.uint8]:
    def state(name: str) -> HostState:
        if INPUT_NAME.search(name):
            return HostState.INPUT
        if _GC_NAME.search(name):
            return HostState.GC
        if collectives and COLLECTIVE_NAME.search(name):
            return HostState.COMMUNICATION
        return otherwise

    return _by_name(names, [state(name) for name in distinct(names)])


def call_state(name: str) -> HostState:
    """The state that a runtime call puts its thread in."""
    if is_call(name, "sync"):
        return HostState.SYNC
    if is_call(name, "allocate"):
        return HostState.ALLOCATOR
    return HostState.LAUNCH


def _call_states(names: pl.Series) -> NDArray[np.uint8]:
    return _by_name(names, [call_state(name) for name in distinct(names)])


def _by_name(names: pl.Series, states: list[HostState]) -> NDArray[np.uint8]:
    chosen: NDArray[np.uint8] = np.array([*states, HostState.NONE], np.uint8)[codes(names)]
    return chosen


def overlay(primary: Timeline, secondary: Timeline) -> Timeline:
    """``primary``, replaced by ``secondary`` where only ``primary`` was in Python or nowhere.

    While one thread waits in Python for another (the training thread for the backward thread), the other's work is what
    keeps the device waiting.
    """
    soft = (HostState.NONE, HostState.PYTHON)
    times = merged_times(primary.times, secondary.times)
    if len(times) < 2:
        return primary
    mine = state_at(primary, times[:-1])
    theirs = state_at(secondary, times[:-1])
    takes_over = np.isin(mine, soft) & ~np.isin(theirs, soft)
    awake = (mine == HostState.NONE) & (theirs == HostState.PYTHON)
    return Timeline(times, np.where(takes_over | awake, theirs, mine).astype(np.uint8))


def state_at(timeline: Timeline, instants: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The state at each instant; 0 before the timeline begins and after it ends."""
    if not len(timeline.states):
        return np.zeros(len(instants), np.uint8)
    span = np.searchsorted(timeline.times, instants, side="right") - 1
    known = (span >= 0) & (span < len(timeline.states))
    return np.where(known, timeline.states[np.clip(span, 0, len(timeline.states) - 1)], HostState.NONE).astype(np.uint8)
