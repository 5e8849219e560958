"""When the host, the streams and the ranks do what: a discrete-event replay that shares nothing with whystall."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.accuracy.retimed.unit import EVERYTHING, NOTHING, Call, Event, Op, Unit

QUEUE = 1024
"""Launches that the driver takes before a call blocks."""
OWN, ALL = "own", "all"


def once(_rank: int, _step: int) -> float:
    """The factor that changes nothing."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Insert:
    """What is put into each step at an instant: a stretch of the host, a call, work of the device, a wait."""

    at: float
    lasts: Callable[[int, int], float]
    """Host time by rank and step; none where it is 0 and there is no work."""
    shown: tuple[Event, ...] = ()
    """What is written for it on the host, each inside the one before."""
    thread: tuple[Any, Any] | None = None
    op: Op | None = None
    waits: str = ""
    """``own``: until its own work is done; ``all``: until all that was launched is."""
    when: Callable[[int, int], bool] = lambda _rank, _step: True
    covers: int = 0
    """So many of what was put in before lie within what is written for it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to a job."""

    inserts: tuple[Insert, ...] = ()
    calls: Callable[[int, int], float] = once
    """How many times as long launching calls take, by rank and step."""
    ops: Callable[[Op, int, int], float] = lambda _op, _rank, _step: 1.0
    host: Callable[[int, int], float] = once
    """How many times as long all of the host takes, by rank and step."""


@dataclass(slots=True)
class Rank:
    """Times of one rank."""

    starts: list[float] = field(default_factory=list)
    """Where each step starts in time without shifts."""
    factors: list[float] = field(default_factory=list)
    olds: list[float] = field(default_factory=lambda: [-1e18])
    shifts: list[float] = field(default_factory=lambda: [0.0])
    ops: list[tuple[int, Op, float, float, float]] = field(default_factory=list)
    """Step, work, its call's beginning, its start and its end."""
    inserted: list[tuple[int, Insert, float, float, int]] = field(default_factory=list)
    """Step, what, when it begins and ends on the host, and the place of its work among ``ops``."""
    done: list[float] = field(default_factory=list)
    """When all of each step's work is done, on the host and the device."""


@dataclass(slots=True)
class _State:
    shift: float = 0.0
    free: dict[Any, float] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)
    """Ends of this step's own work."""
    before: float = 0.0
    latest: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A unit, repeated on some ranks, with a noise of its own."""

    unit: Unit
    steps: int
    ranks: int
    seed: str
    host_noise: float = 0.01
    op_noise: float = 0.01
    noisy_steps: float = 0.0
    queue: int = QUEUE
    """Launches that the driver takes before a call blocks."""

    def noise(self) -> list[list[tuple[float, list[float]]]]:
        """Factors by rank and step: of the host, and of each work."""
        found = []
        for rank in range(self.ranks):
            drawn = random.Random(f"{self.seed}-{rank}")  # noqa: S311 - to be drawn alike each time
            steps = []
            for _ in range(self.steps):
                step = max(0.5, drawn.gauss(1.0, self.noisy_steps)) if self.noisy_steps else 1.0
                host = step * max(0.5, drawn.gauss(1.0, self.host_noise))
                works = [step * max(0.5, drawn.gauss(1.0, self.op_noise)) for _ in self.unit.ops]
                steps.append((host, works))
            found.append(steps)
        return found


def replay(job: Job, change: Change | None = None) -> list[Rank]:
    """The times of a job with a change."""
    return _Replay(job, change or Change()).run()


class _Replay:
    def __init__(self, job: Job, change: Change) -> None:
        self.job, self.change = job, change
        self.ranks = [Rank() for _ in range(job.ranks)]
        self.states = [_State() for _ in range(job.ranks)]
        self.noise = job.noise()
        actions: list[tuple[float, int, Call | Insert]] = [
            (call.begin, number, call) for number, call in enumerate(job.unit.calls)
        ]
        actions += [(insert.at, number, insert) for number, insert in enumerate(change.inserts)]
        self.actions: Sequence[Call | Insert] = [each for _, _, each in sorted(actions, key=lambda each: each[:2])]

    def run(self) -> list[Rank]:
        for step in range(self.job.steps):
            for number, rank in enumerate(self.ranks):
                factor = self.noise[number][step][0] * self.change.host(number, step)
                rank.starts.append(rank.starts[-1] + self.job.unit.length * rank.factors[-1] if rank.starts else 0.0)
                rank.factors.append(factor)
                self.states[number].before = self.states[number].latest
                self.states[number].ends = [0.0] * len(self.job.unit.ops)
            for action in self.actions:
                if isinstance(action, Call):
                    self._call(action, step)
                else:
                    self._insert(action, step)
            for number, rank in enumerate(self.ranks):
                state = self.states[number]
                host = rank.starts[-1] + self.job.unit.length * rank.factors[-1] + state.shift
                rank.done.append(max(host, state.latest))
        return self.ranks

    def _call(self, call: Call, step: int) -> None:
        begun, ended = [], []
        for number, rank in enumerate(self.ranks):
            state, factor = self.states[number], rank.factors[step]
            begin = rank.starts[step] + call.begin * factor + state.shift
            lasts = (call.end - call.begin) * factor
            if call.op >= 0:
                lasts *= self.change.calls(number, step)
            if call.wait != NOTHING:
                lasts = min(lasts, 4.0)
            begun.append(begin)
            ended.append(self._queued(rank, begin + lasts) if call.op >= 0 else begin + lasts)
        if call.op >= 0:
            self._work(self.job.unit.ops[call.op], call.op, step, begun, ended)
        for number, rank in enumerate(self.ranks):
            state = self.states[number]
            end = ended[number]
            if call.wait != NOTHING:
                until = state.before if call.wait == EVERYTHING else state.ends[call.wait]
                end = max(end, until + call.tail)
            self._shifted(rank, state, rank.starts[step] + call.end * rank.factors[step], end)

    def _queued(self, rank: Rank, end: float) -> float:
        """When a launch returns: not before there is a place in the queue."""
        return max(end, rank.ops[-self.job.queue][3]) if len(rank.ops) >= self.job.queue else end

    @staticmethod
    def _shifted(rank: Rank, state: _State, old: float, new: float) -> None:
        state.shift = new - old
        rank.olds.append(max(old, rank.olds[-1]))
        rank.shifts.append(state.shift)

    def _insert(self, insert: Insert, step: int) -> None:
        chosen = [number for number in range(len(self.ranks)) if insert.when(number, step)]
        if not chosen or (insert.op is not None and insert.op.collective and len(chosen) < len(self.ranks)):
            return
        begun, ended = {}, {}
        for number in chosen:
            rank, state = self.ranks[number], self.states[number]
            begun[number] = rank.starts[step] + insert.at * rank.factors[step] + state.shift
            ended[number] = begun[number] + insert.lasts(number, step)
            if insert.op is not None:
                ended[number] = self._queued(rank, ended[number])
        if insert.op is not None:
            self._work(insert.op, None, step, [*begun.values()], [*ended.values()], chosen)
        for number in chosen:
            rank, state = self.ranks[number], self.states[number]
            end = ended[number]
            if insert.waits == OWN:
                end = max(end, rank.ops[-1][4] + 2.0)
            elif insert.waits == ALL:
                end = max(end, state.latest + 3.0)
            old = rank.starts[step] + insert.at * rank.factors[step]
            self._shifted(rank, state, old, old + state.shift + end - begun[number])
            shown = rank.inserted[-insert.covers][2] - 1e-3 if insert.covers else begun[number]
            rank.inserted.append((step, insert, shown, end, len(rank.ops) - 1))

    def _work(
        self,
        op: Op,
        index: int | None,
        step: int,
        begun: Sequence[float],
        ended: Sequence[float],
        chosen: Sequence[int] | None = None,
    ) -> None:
        who = range(len(self.ranks)) if chosen is None else chosen
        started, lasting = [], []
        for place, number in enumerate(who):
            state = self.states[number]
            start = max(ended[place] + op.lead, state.free.get(op.stream, 0.0) + op.gap, begun[place])
            for at, gap in op.after:
                start = max(start, state.ends[at] + gap)
            noise = 1.0 if index is None else self.noise[number][step][1][index]
            started.append(start)
            lasting.append(op.lasts * noise * self.change.ops(op, number, step))
        together = max(start for start in started) + max(lasting) if op.collective and len(self.ranks) > 1 else None
        for place, number in enumerate(who):
            state, rank = self.states[number], self.ranks[number]
            end = started[place] + lasting[place] if together is None else together
            if index is not None:
                state.ends[index] = end
            state.free[op.stream] = end
            state.latest = max(state.latest, end)
            rank.ops.append((step, op, begun[place], started[place], end))


def step_time(ranks: Sequence[Rank]) -> float:
    """The mean time of steady steps: without the first two and the last."""
    return sum((rank.done[-2] - rank.done[1]) / (len(rank.done) - 3) for rank in ranks) / len(ranks)


def busy_share(ranks: Sequence[Rank], *, compute: bool = False) -> float:
    """How much of the steady steps the first rank's device is at work (at compute alone)."""
    rank = ranks[0]
    first, last = rank.done[1], rank.done[-2]
    spans = sorted(
        (max(start, first), min(end, last))
        for _, op, _, start, end in rank.ops
        if end > first and start < last and not (compute and op.collective)
    )
    total, until = 0.0, first
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total / (last - first)
