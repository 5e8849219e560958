"""Phases of a step: forward, backward, optimizer, and other."""

from __future__ import annotations

import re
from typing import Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of, is_backward
from whystall.analysis.host_states import INPUT_NAME
from whystall.analysis.intervals import ANY, class_timeline
from whystall.analysis.operators import OperatorTree
from whystall.analysis.results import Phase
from whystall.trace.columns import matching, rows_by_value
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

PhaseName = Literal["forward", "backward", "optimizer", "other"]
PHASES: Final[tuple[PhaseName, ...]] = ("forward", "backward", "optimizer", "other")
_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = range(4)
_OPTIMIZER_NAME: Final = re.compile(r"^Optimizer\.(step|zero_grad)#")


def phase_results(trace: Trace, tree: OperatorTree, rank: int) -> list[Phase]:
    """Device and host time per phase and device; empty when the trace has no operators."""
    if trace.operators.is_empty():
        return []
    of_operator = phase_of_operators(trace, tree)
    host = np.zeros(len(PHASES), np.int64)
    np.add.at(host, of_operator, trace.operators["self_ns"].to_numpy())
    events = trace.device_events
    if events.is_empty():
        counts = np.bincount(of_operator, minlength=len(PHASES))
        rows = [(0, phase, int(host[phase]), int(counts[phase])) for phase in range(len(PHASES))]
    else:
        rows = _device_rows(trace, of_operator)
    return [
        Phase(
            rank=rank, device=device, phase=PHASES[phase], device_ns=time, device_events=count, host_ns=int(host[phase])
        )
        for device, phase, time, count in rows
    ]


def phase_of_operators(trace: Trace, tree: OperatorTree) -> NDArray[np.int64]:
    """The phase of each operator: by the optimizer's annotation, the autograd engine, the input's marks."""
    operators = trace.operators
    phase = np.where(is_backward(tree, forward_operator_of(trace, tree)), _BACKWARD, _FORWARD)
    phase[_inside(operators, _named(trace, _OPTIMIZER_NAME))] = _OPTIMIZER
    phase[_inside(operators, _named(trace, INPUT_NAME))] = _OTHER
    return phase


def _device_rows(trace: Trace, of_operator: NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
    events = trace.device_events
    operator = rows_of(events["operator"])
    phase = np.where(operator >= 0, of_operator[np.maximum(operator, 0)], _OTHER)
    # launched outside any operator but inside a mark or a Python frame
    calls = trace.runtime_calls.select("ts_ns", "thread")
    launch = rows_of(events["launch"])
    loose = np.flatnonzero((operator < 0) & (launch >= 0))
    if len(loose):
        launched = calls[launch[loose]]
        inside = _inside(launched, _named(trace, _OPTIMIZER_NAME))
        phase[loose] = np.where(inside, _OPTIMIZER, _FORWARD)
    start = events["ts_ns"].to_numpy()
    end = start + events["duration_ns"].to_numpy()
    device = events["device"].to_numpy()
    out = []
    for number in np.unique(device).tolist():
        for name in range(len(PHASES)):
            mine = (device == number) & (phase == name)
            timeline = class_timeline(start[mine], end[mine], np.zeros(int(mine.sum()), np.uint8))
            out.append((int(number), name, timeline.total(ANY), int(mine.sum())))
    return out


def _named(trace: Trace, pattern: re.Pattern[str]) -> pl.DataFrame:
    """Annotations whose name matches."""
    mask = pl.Series(matching(trace.annotations["name"], pattern.search))
    return trace.annotations.filter(mask).select("ts_ns", "duration_ns", pl.col("thread").cast(pl.Int32))


def _inside(events: pl.DataFrame, marks: pl.DataFrame) -> NDArray[np.bool_]:
    """Which events start inside a mark on their own thread."""
    out = np.zeros(len(events), np.bool_)
    thread, start = events["thread"].to_numpy(), events["ts_ns"].to_numpy()
    marked, begin = marks["thread"].to_numpy(), marks["ts_ns"].to_numpy()
    end = begin + marks["duration_ns"].to_numpy()
    rows = rows_by_value(thread) if len(marked) else {}
    for number, own in rows_by_value(marked).items():
        mine = rows.get(number, np.zeros(0, np.intp))
        spans = class_timeline(begin[own], end[own], np.zeros(len(own), np.uint8))
        if not len(spans.states):
            continue
        at = np.searchsorted(spans.times, start[mine], side="right") - 1
        known = (at >= 0) & (at < len(spans.states))
        out[mine[known]] = spans.states[at[known]] != 0
    return out
