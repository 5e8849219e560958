"""A case: what is done to a job, and what may be said of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.accuracy.retimed.replay import Change, Insert, Job, replay, step_time
from benchmarks.accuracy.retimed.unit import Event, Unit, of_free

FAINT = 1.03
"""A fault that is worth less is none to be named: it is drawn again."""
HIDDEN = 1.005
"""What is worth less is a control."""


@dataclass(frozen=True, slots=True)
class Base:
    """A job of recorded steps, and what a step takes."""

    file: str
    tight: bool
    """Whether its device bounds it: waits are taken out, and its host is fast."""
    job: Job
    us: float

    @property
    def unit(self) -> Unit:
        """Its step."""
        return self.job.unit

    @property
    def modern(self) -> bool:
        """Whether Python's frames were recorded."""
        return any(event.get("cat") == "python_function" for event in self.unit.host)


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged."""

    kind: str
    base: Base
    job: Job
    change: Change
    cause: str = ""
    """None is a control."""
    gain: float | None = None
    """The time of a step over its time without the fault."""
    accepted: tuple[str, ...] = ()
    rank: int | None = None
    clock: Callable[[int, float], float] | None = None
    prefix: tuple[Event, ...] = ()
    """Host events before all, with times before 0."""
    only: tuple[str, ...] = ()
    """Of a control: what alone would be a false alarm; empty for all."""
    absolute: bool = False
    """What the base says of itself is no excuse, but for what kernels cost."""
    same: bool = False
    """All must be said that is said of the base."""
    detail: str = ""


def time_of(job: Job, change: Change | None = None) -> float:
    """A steady step's time."""
    return step_time(replay(job, change))


def sized(base: Base, make: Callable[[float], Change], want: float, start: float) -> tuple[Change, float]:
    """A change that makes a step by so much longer, and by how much it does."""
    low, high, size = 0.0, math.inf, start
    change, gain = make(size), 1.0
    for _ in range(12):
        change = make(size)
        gain = time_of(base.job, change) / base.us
        if abs(gain - 1 - want) < 0.1 * want:
            break
        low, high = (size, high) if gain - 1 < want else (low, size)
        size = 2.5 * size if high == math.inf else (low + high) / 2
    return change, gain


def places(drawn: random.Random, unit: Unit, count: int) -> list[Insert]:
    """Free instants, spread over the step."""
    shift = drawn.random() / count
    found = [of_free(unit, min(0.98, number / count + shift)) for number in range(count)]
    return [Insert(at, lambda _rank, _step: 0.0, thread=thread) for at, thread in dict.fromkeys(found)]


def stop(drawn: random.Random, unit: Unit) -> Insert:
    """A free instant of the training thread: while another thread runs the backward pass it can do nothing else."""
    at, thread = of_free(unit, drawn.random() * 0.98, of=unit.main)
    return Insert(at, lambda _rank, _step: 0.0, thread=thread)


def call(unit: Unit, name: str, *, launches: bool = False, **args: object) -> Event:
    """A call of the runtime, to be written."""
    return {"cat": "Runtime" if unit.old else "cuda_runtime", "name": name, "args": args, "launches": launches}


def operator(unit: Unit, name: str, **args: object) -> Event:
    """An operator, to be written."""
    return {"cat": "Operator" if unit.old else "cpu_op", "name": name, "args": args}


def function(name: str) -> Event:
    """A function of Python, to be written."""
    return {"cat": "python_function", "name": name}
