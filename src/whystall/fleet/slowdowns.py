"""The cost of stragglers in a job: its step times without them, by simulation on an operation log.

Definitions are those of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25). Without
stragglers every computation takes the mean of its kind over workers and steps, and every transfer the median of its
kind (transfers have long tails).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.errors import InputError
from whystall.fleet.operation_graph import COMPUTATION, Graph, Task, build_graph
from whystall.fleet.operation_log import read_operation_log

__all__ = ["Share", "Slowdowns", "slowdowns"]

_SLOWEST: Final = 0.03  # of the workers, for M_W; at least one


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the slowdown some workers explain. Times are seconds a step, the mean over steps."""

    fixed_s: float
    """With these workers without stragglers and all others as they are."""
    alone_s: float
    """With these workers as they are and all others without stragglers."""
    share: float | None
    """(T - fixed) / (T - ideal); 1 explains all; None if the job is not slowed."""


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """The slowdowns of a job: 1 is none. Keys are steps, kinds of operation, data-parallel ranks and stages."""

    measured_s: float
    """The mean step, first start to last end."""
    simulated_s: float
    """T, the mean step as it is but for delays between operations; seconds."""
    ideal_s: float
    """The step without stragglers."""
    slowdown: float
    """S: T over the ideal."""
    unexplained: float
    """The measured step over T: above 1 by the time between operations."""
    by_step: Mapping[int, float]
    """S of each step."""
    by_operation: Mapping[str, float]
    """S_t: with this kind as it is and all else ideal, over the ideal."""
    by_dp_rank: Mapping[int, float]
    by_stage: Mapping[int, float]
    by_worker: Mapping[tuple[int, int], float]
    """S_w by data-parallel rank and stage: the smaller of the two."""
    slowest_workers: tuple[tuple[int, int], ...]
    """The slowest 3 % of the workers, at least one."""
    workers: Share
    """M_W: the share that the slowest workers explain."""
    last_stage: Share
    """M_S: the share that the last stage explains."""
    left_out_steps: tuple[int, ...]
    """Steps whose sends, receives or order do not fit: their log is incomplete."""


def slowdowns(path: str | Path) -> Slowdowns:
    """The cost of stragglers from an operation log (Parquet). Raises ``InputError`` where it is no such log."""
    graphs: list[Graph] = []
    left_out: list[int] = []
    failures: list[InputError] = []
    for steps in read_operation_log(Path(path)):
        try:
            graphs.append(build_graph(steps))
        except InputError as error:  # a step that was cut leaves the others as they are
            failures.append(error)
            left_out += steps.steps
    if not graphs:
        raise failures[0]
    return _Simulation(graphs).slowdowns(tuple(sorted(left_out)))


class _Simulation:
    """The job's steps, with some tasks as they were and the others as they would be without stragglers."""

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._graphs = graphs
        self._ideal = _ideal_durations(graphs)
        self._ideal_s = float(np.mean(self._step_times(lambda _: False)))

    def slowdowns(self, left_out: tuple[int, ...]) -> Slowdowns:
        """All of them; ``left_out`` are the steps that could not be simulated."""
        steps = [step for graph in self._graphs for step in graph.steps]
        times = self._step_times(lambda _: True)
        measured = np.concatenate([graph.measured_s for graph in self._graphs])
        tasks = sorted({task for graph in self._graphs for task in graph.tasks if task is not None})
        by_rank = {one: self._alone(lambda task: task.dp_rank == one) for one in sorted({t.dp_rank for t in tasks})}  # noqa: B023
        by_stage = {one: self._alone(lambda task: task.stage == one) for one in sorted({t.stage for t in tasks})}  # noqa: B023
        workers = sorted({(task.dp_rank, task.stage) for task in tasks})
        by_worker = {worker: min(by_rank[worker[0]], by_stage[worker[1]]) for worker in workers}
        slowest = sorted(workers, key=lambda worker: (-by_worker[worker], worker))[
            : max(1, round(_SLOWEST * len(workers)))
        ]
        simulated_s, last = float(np.mean(times)), max(by_stage)
        return Slowdowns(
            measured_s=float(np.mean(measured)),
            simulated_s=simulated_s,
            ideal_s=self._ideal_s,
            slowdown=simulated_s / self._ideal_s,
            unexplained=float(np.mean(measured)) / simulated_s,
            by_step={step: time / self._ideal_s for step, time in sorted(zip(steps, times.tolist(), strict=True))},
            by_operation={one: self._alone(lambda task: task.kind == one) for one in sorted({t.kind for t in tasks})},  # noqa: B023
            by_dp_rank=by_rank,
            by_stage=by_stage,
            by_worker=by_worker,
            slowest_workers=tuple(slowest),
            workers=self._share(lambda task: (task.dp_rank, task.stage) in slowest, simulated_s),
            last_stage=self._share(lambda task: task.stage == last, simulated_s),
            left_out_steps=left_out,
        )

    def _step_times(self, as_it_was: Callable[[Task], bool]) -> NDArray[np.float64]:
        """Every step's time with the chosen tasks' real durations, and ideal ones for the others; seconds."""
        found = []
        for graph in self._graphs:
            durations = graph.durations_s.copy()
            for row, task in enumerate(graph.tasks):
                if task is not None and not as_it_was(task):
                    durations[row] = self._ideal[task.kind]
            found.append(graph.step_times(durations))
        return np.concatenate(found)

    def _alone(self, chosen: Callable[[Task], bool]) -> float:
        """The slowdown where the chosen tasks are as they were and all others ideal."""
        return float(np.mean(self._step_times(chosen))) / self._ideal_s

    def _share(self, chosen: Callable[[Task], bool], simulated_s: float) -> Share:
        fixed_s = float(np.mean(self._step_times(lambda task: not chosen(task))))
        alone_s = float(np.mean(self._step_times(chosen)))
        lost_s = simulated_s - self._ideal_s
        return Share(fixed_s, alone_s, (simulated_s - fixed_s) / lost_s if lost_s > 0 else None)


def _ideal_durations(graphs: Sequence[Graph]) -> dict[str, float]:
    """The duration of each kind of task without stragglers; seconds."""
    by_kind: dict[str, list[NDArray[np.float64]]] = {}
    for graph in graphs:
        for task, durations in zip(graph.tasks, graph.durations_s, strict=True):
            if task is not None:
                by_kind.setdefault(task.kind, []).append(durations)
    return {
        kind: float((np.mean if kind in COMPUTATION else np.median)(np.concatenate(durations)))
        for kind, durations in by_kind.items()
    }
