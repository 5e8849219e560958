"""Dependencies between the operations of a step, and their ends under other durations.

Each worker does its computation one after the other. An activation or gradient is sent once it is computed, arrives
after its transfer and is waited for by the computation that needs it; transfers of one direction between two workers
follow each other. A collective begins when the last of its workers is there. The host's own delays between operations
are left out, as the paper does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.errors import InputError
from whystall.fleet.operation_log import Operation, Steps

__all__ = ["COMPUTATION", "Graph", "Task", "build_graph"]

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTATION: Final = frozenset({FORWARD, BACKWARD, "optimizer", "gc"})
_OVER_DATA: Final = frozenset(
    {"params-all-gather", "grads-reduce-scatter"}
)  # the same stage of all data-parallel ranks
_OVER_ENDS: Final = frozenset({"embedding-grads-all-reduce"})  # the stages that share the embedding
_OVER_ALL: Final = frozenset({"optimizer-clip-main-grad"})  # the norm of all gradients
_GATHER, _SCATTER = "params-all-gather", "grads-reduce-scatter"


class Task(NamedTuple):
    """A task with a duration: an operation of a worker; a transfer belongs to the worker that receives it."""

    dp_rank: int
    stage: int
    kind: str


@dataclass(frozen=True, slots=True)
class Graph:
    """The tasks of a step with their dependencies, in an order in which a task stands behind all of these."""

    steps: tuple[int, ...]
    tasks: tuple[Task | None, ...]
    """None is a meeting of a collective's workers, which takes no time."""
    before: tuple[tuple[int, ...], ...]
    durations_s: NDArray[np.float64]
    """Without waiting for others; of shape (tasks, steps)."""
    measured_s: NDArray[np.float64]
    """How long each step took, from the first start to the last end."""

    def step_times(self, durations_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """How long each step takes where tasks take ``durations_s`` (of shape (tasks, steps)); seconds."""
        ends = np.zeros_like(durations_s)
        for task, before in enumerate(self.before):
            if len(before) == 1:
                np.add(ends[before[0]], durations_s[task], out=ends[task])
            elif before:
                np.add(ends[list(before)].max(axis=0), durations_s[task], out=ends[task])
            else:
                ends[task] = durations_s[task]
        longest: NDArray[np.float64] = ends.max(axis=0)
        return longest


def build_graph(log: Steps) -> Graph:
    """The graph of steps of one schedule. Raises ``InputError`` where sends, receives or their order do not fit."""
    return _Builder(log).graph()


class _Builder:
    """Gathers the tasks and their dependencies, in the order in which they are met; sorts them at the end."""

    def __init__(self, log: Steps) -> None:
        self._log = log
        self._end = log.start_s + log.duration_s
        self._tasks: list[Task | None] = []
        self._before: list[list[int]] = []
        self._durations: list[NDArray[np.float64]] = []
        self._zero = np.zeros(len(log.steps))
        self._row = {operation: row for row, operation in enumerate(log.operations)}
        self._workers: dict[tuple[int, int], list[Operation]] = defaultdict(list)
        for operation in log.operations:
            self._workers[operation.dp_rank, operation.stage].append(operation)
        self._stages = 1 + max(operation.stage for operation in log.operations)
        self._chunks = 1 + max(operation.pipeline_chunk for operation in log.operations)
        self._at: dict[Operation, int] = {}

    def graph(self) -> Graph:
        meetings = dict(self._meetings())
        for worker in self._workers.values():
            self._chain([one for one in worker if not one.kind.endswith(("-send", "-recv"))], meetings)
        for kind in (FORWARD, BACKWARD):
            self._transfers(kind)
        order = _sorted(self._before)
        place = {task: at for at, task in enumerate(order)}
        return Graph(
            steps=self._log.steps,
            tasks=tuple(self._tasks[task] for task in order),
            before=tuple(tuple(place[one] for one in self._before[task]) for task in order),
            durations_s=np.array([self._durations[task] for task in order]),
            measured_s=self._end.max(axis=0) - self._log.start_s.min(axis=0),
        )

    def _add(self, task: Task | None, before: list[int], duration_s: NDArray[np.float64]) -> int:
        self._tasks.append(task)
        self._before.append(before)
        self._durations.append(duration_s)
        return len(self._tasks) - 1

    def _meetings(self) -> Iterator[tuple[Operation, tuple[int, NDArray[np.float64]]]]:
        """For each operation of a collective: the task in which its workers meet, and its time from there."""
        groups: dict[tuple[object, ...], list[Operation]] = defaultdict(list)
        for one in self._log.operations:
            if one.kind in _OVER_DATA:
                groups[one.kind, one.stage, one.sequence, one.model_chunk].append(one)
            elif one.kind in _OVER_ENDS:
                groups[one.kind, one.dp_rank, one.sequence].append(one)
            elif one.kind in _OVER_ALL:
                groups[one.kind, one.sequence].append(one)
        for group in groups.values():
            rows = [self._row[one] for one in group]
            last = self._log.start_s[rows].max(axis=0)
            meeting = self._add(None, [], self._zero)
            for one, row in zip(group, rows, strict=True):
                yield one, (meeting, np.maximum(self._end[row] - last, 0))

    def _chain(self, worker: Sequence[Operation], meetings: dict[Operation, tuple[int, NDArray[np.float64]]]) -> None:
        """One worker's operations, one after the other; while it computes, collectives over data run beside."""
        last_computed = max((place for place, one in enumerate(worker) if one.kind in (FORWARD, BACKWARD)), default=-1)
        free: int | None = None
        beside: int | None = None
        gathered: dict[int, int] = {}
        for place, one in enumerate(worker):
            aside = one.kind in _OVER_DATA and place < last_computed
            before = [beside] if aside and one.kind == _GATHER else [free]
            if aside and one.kind == _SCATTER:
                before = [beside, self._last_backward(worker[:place], one.model_chunk)]
            if one.kind == FORWARD:
                before.append(gathered.pop(one.model_chunk, None))
            elif not aside and place > last_computed:
                before.append(beside)
            ready = sorted({task for task in before if task is not None})
            duration = self._log.duration_s[self._row[one]]
            if one in meetings:
                meeting, duration = meetings[one]
                self._before[meeting] += ready
                ready = [meeting]
            task = self._at[one] = self._add(Task(one.dp_rank, one.stage, one.kind), ready, duration)
            if aside:
                beside = task
                if one.kind == _GATHER:
                    gathered[one.model_chunk] = task
            else:
                free = task

    def _last_backward(self, done: Sequence[Operation], chunk: int) -> int | None:
        """The last backward computation of a model chunk among a worker's operations so far."""
        return next(
            (self._at[one] for one in reversed(done) if one.kind == BACKWARD and one.model_chunk == chunk), None
        )

    def _transfers(self, kind: str) -> None:
        """Activations go to the next chunk of the pipeline, gradients to the one before, in order on both sides."""
        way = 1 if kind == FORWARD else -1
        name = kind.partition("-")[0]
        end = self._chunks - 1 if way == 1 else 0
        begin = 0 if way == 1 else self._chunks - 1
        needs = {
            (one.dp_rank, one.pipeline_chunk, one.microbatch): (number, one)
            for worker in self._workers.values()
            for number, one in enumerate(one for one in worker if one.kind == kind and one.pipeline_chunk != begin)
        }
        rows = {(one.dp_rank, one.stage, one.kind, one.sequence): row for one, row in self._row.items()}
        for (dp_rank, stage), worker in self._workers.items():
            link: int | None = None
            sending = [one for one in worker if one.kind == kind and one.pipeline_chunk != end]
            for number, one in enumerate(sending):
                number_there, waiting = needs.get((dp_rank, one.pipeline_chunk + way, one.microbatch), (0, None))
                there = (stage + way) % self._stages
                sent = rows.get((dp_rank, stage, f"{name}-send", number))
                received = rows.get((dp_rank, there, f"{name}-recv", number_there))
                if waiting is None or sent is None or received is None:
                    raise InputError(
                        f"dp_rank {dp_rank}, stage {stage}: {kind} of microbatch {one.microbatch} lacks {name}-send or "
                        f"{name}-recv {number}: was the log cut?"
                    )
                starts = np.maximum(self._log.start_s[sent], self._log.start_s[received])
                before = [self._at[one]] if link is None else [self._at[one], link]
                link = self._add(
                    Task(dp_rank, there, f"{name}-pp-comm"), before, np.maximum(self._end[received] - starts, 0)
                )
                self._before[self._at[waiting]].append(link)


def _sorted(before: Sequence[Sequence[int]]) -> list[int]:
    """The tasks so that each stands behind those it waits for. Raises ``InputError`` where they wait in a circle."""
    waits = [len(set(one)) for one in before]
    after: dict[int, set[int]] = defaultdict(set)
    for task, ones in enumerate(before):
        for one in ones:
            after[one].add(task)
    ready = [task for task, count in enumerate(waits) if not count]
    for task in ready:  # grows while it is read
        for one in sorted(after[task]):
            waits[one] -= 1
            if not waits[one]:
                ready.append(one)
    if len(ready) < len(before):
        raise InputError("operations wait for each other in a circle: is the log of one job, with clocks that agree?")
    return ready
