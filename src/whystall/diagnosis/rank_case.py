"""One rank of a case: its trace, its analysis, and the events and code lines that rules need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.dataflow.by_shape import by_shape
from whystall.analysis.dataflow.graph import Dataflow
from whystall.analysis.hosts import backward_threads, training_thread
from whystall.analysis.intervals import within
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.analysis.workings import Workings
from whystall.diagnosis.detectors.startup import preparations, startup_calls
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import codes, distinct, matching
from whystall.trace.link import HOST_TABLES, rows_of
from whystall.trace.model import Trace
from whystall.trace.steps import OPTIMIZER_STEP
from whystall.vocabulary.autograd import EVALUATES


@dataclass(frozen=True)
class RankCase:
    """One rank's trace and its analysis."""

    rank: int
    trace: Trace
    analysis: TraceAnalysis

    @cached_property
    def offsets(self) -> dict[str, tuple[int, int]]:
        """Where each host table lies in the numbering of host events."""
        out, total = {}, 0
        for name in HOST_TABLES:
            out[name] = (total, total + len(getattr(self.trace, name)))
            total += len(getattr(self.trace, name))
        return out

    @cached_property
    def on_device(self) -> bool:
        """Whether the job used an accelerator."""
        return not self.trace.device_events.is_empty()

    @cached_property
    def has_frames(self) -> bool:
        """Whether Python's calls were recorded on a thread that works: those of a waiting thread are no evidence."""
        working = pl.concat([self.trace.operators["thread"], self.trace.runtime_calls["thread"]]).unique()
        return bool(self.trace.python_functions["thread"].is_in(working.implode()).any())

    @cached_property
    def training(self) -> int | None:
        """The thread that runs the steps."""
        return training_thread(self.trace)

    @cached_property
    def backward_threads(self) -> list[int]:
        """The threads that run its backward pass, where these are others."""
        return sorted(backward_threads(self.trace) - {self.training})

    @property
    def workings(self) -> Workings:
        """Intermediate results by device event of the trace."""
        return self.analysis.workings

    @cached_property
    def dataflow(self) -> Dataflow:
        """Which call made each tensor, and which read it."""
        return by_shape(self.trace, self.workings.tree, self.workings.work)

    @cached_property
    def startup(self) -> Mask:
        """Which host events are calls that start something up."""
        return startup_calls(self.trace, self.offsets)

    @cached_property
    def preparations(self) -> tuple[Times, Times]:
        """Begin and end of the stretches in which a model was compiled or a graph captured, before a steady step."""
        return preparations(self.trace) if self.on_device else (np.zeros(0, np.int64), np.zeros(0, np.int64))

    def host_named(self, test: Callable[[str], object], tables: Sequence[str] = HOST_TABLES) -> Mask:
        """Which host events (in their numbering) have a name that passes a test."""
        out = np.zeros(self.offsets[HOST_TABLES[-1]][1], np.bool_)
        for table in tables:
            first, last = self.offsets[table]
            names = getattr(self.trace, table)["name"]
            passed = np.array([bool(test(text)) for text in distinct(names)], np.bool_)
            if passed.any():
                out[first:last] = passed[codes(names)]
        return out

    def device_named(self, test: Callable[[str], object]) -> Mask:
        """Which device events have a name that passes a test."""
        names = self.trace.device_events["name"]
        passed = np.array([bool(test(text)) for text in distinct(names)], np.bool_)
        return passed[codes(names)] if len(passed) else np.zeros(len(names), np.bool_)

    def intervals(self, events: Mask) -> tuple[Times, Times, NDArray[np.int64]]:
        """Start, end and thread of host events, by start."""
        columns = [
            np.concatenate([getattr(self.trace, name)[column].to_numpy() for name in HOST_TABLES])
            for column in ("ts_ns", "duration_ns", "thread")
        ]
        start, duration, thread = (values[events] for values in columns)
        order = np.argsort(start, kind="stable")
        return start[order], (start + duration)[order], thread[order].astype(np.int64)

    @cached_property
    def optimizer_steps(self) -> tuple[Times, Times, NDArray[np.int64]]:
        """Start, end and thread of the steps of optimizers, as torch marks them, after the closures that they call.

        A closure is the forward and backward pass: a step begins where the last backward operator in it ends.
        """
        begin, end, thread = self.intervals(
            self.host_named(lambda name: bool(OPTIMIZER_STEP.search(name)), ("annotations",))
        )
        table = self.trace.operators
        backward = table.filter(pl.Series(matching(table["name"], lambda name: name.startswith(EVALUATES)))).sort(
            "ts_ns"
        )
        if not len(begin) or backward.is_empty():
            return begin, end, thread
        at = backward["ts_ns"].to_numpy()
        until = np.maximum.accumulate(at + backward["duration_ns"].to_numpy())
        last = np.searchsorted(at, end) - 1
        called = (last >= 0) & (at[np.maximum(last, 0)] >= begin)
        return np.where(called, np.clip(until[np.maximum(last, 0)], begin, end), begin), end, thread

    @cached_property
    def backward(self) -> Mask:
        """The operators of backward passes: they name the thread of their forward."""
        found: Mask = self.trace.operators["forward_thread"].fill_null(0).to_numpy() > 0
        return found

    @cached_property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return bool(self.backward.any())

    def launches_of(self, events: Mask) -> Mask:
        """The calls (in the numbering of host events) that launched some device events."""
        launch = rows_of(self.trace.device_events["launch"])[events]
        calls = np.zeros(self.offsets["runtime_calls"][1], np.bool_)
        calls[launch[launch >= 0] + self.offsets["runtime_calls"][0]] = True
        return calls

    @cached_property
    def launch_time(self) -> Times:
        """Per device event when its launch began, or -1."""
        launch = rows_of(self.trace.device_events["launch"])
        start = np.append(self.trace.runtime_calls["ts_ns"].to_numpy(), -1)
        return np.where(launch >= 0, start[launch], -1)

    @cached_property
    def last_launch(self) -> int:
        """When the last launch began, or -1: later waits of the host delay nothing."""
        return int(self.launch_time.max(initial=-1))

    def step_at(self, instants: Times) -> NDArray[np.int64]:
        """The step that each instant lies in; -1 before the first and behind the last."""
        begin = self.trace.steps["ts_ns"].to_numpy()
        ends = begin + self.trace.steps["duration_ns"].to_numpy()
        step = np.searchsorted(begin, instants, side="right") - 1
        return np.where(instants < ends.max(initial=0), step, -1)

    def of_the_job(self, begin: Times) -> Mask:
        """Which calls begin up to the last launch or within a step: later ones are the profiler's own."""
        steps = self.trace.steps
        first = steps["ts_ns"].to_numpy()
        found: Mask = (begin <= self.last_launch) | within(begin, first, first + steps["duration_ns"].to_numpy())
        return found

    def launched_by(self, operators: Mask) -> Mask:
        """Which device events some operators launched themselves."""
        found: Mask = np.append(operators, values=False)[rows_of(self.trace.device_events["operator"])]
        return found

    def launched_in(self, begin: Times, end: Times) -> Mask:
        """Which device events were launched within intervals that are sorted by start (from any thread)."""
        return within(self.launch_time, begin, end) & (self.launch_time >= 0)
