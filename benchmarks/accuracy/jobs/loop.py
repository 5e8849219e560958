"""What the jobs share: their command line, the clock around their steps, and the brackets that TraceML asks for."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn
from torch.utils.data import Dataset


class Batches(Dataset[Tensor]):
    """Ready-made batches, cut from rows that are in memory: ``rows`` of them at every index, wrapping around."""

    def __init__(self, data: Tensor, rows: int, count: int) -> None:
        self.data, self.rows, self.count = data, rows, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        if index >= self.count:
            raise IndexError(index)
        return self.data[index * 31 % (len(self.data) - self.rows) :][: self.rows]


@dataclass(slots=True)
class Clock:
    """Seconds that each step took, from one mark to the next."""

    durations_s: list[float] = field(default_factory=list)
    _last_s: float | None = None

    def mark(self) -> None:
        """A step ends here."""
        now_s = time.perf_counter()
        if self._last_s is not None:
            self.durations_s.append(now_s - self._last_s)
        self._last_s = now_s


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    fault: str
    cured: bool
    """The same job without the fault: what makes the fault possible, such as costly pictures, stays."""
    steps: int


def bracket(model: nn.Module) -> AbstractContextManager[None]:
    """What TraceML wants around a step, where it watches; else nothing."""
    if os.environ.get("ACCURACY_TRACEML"):
        watched: AbstractContextManager[None] = importlib.import_module("traceml_ai").trace_step(model)
        return watched
    return nullcontext()


def main(train: Callable[[Asked, Clock], None], faults: tuple[str, ...]) -> None:
    """Run a job from the command line; ``--times`` says where its step times go."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("", *faults), default="")
    parser.add_argument("--cured", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--times", type=Path)
    given = parser.parse_args()
    if os.environ.get("ACCURACY_TRACEML"):
        importlib.import_module("traceml_ai").init(mode="auto")
    clock = Clock()
    train(Asked(given.fault, given.cured, given.steps), clock)
    if given.times and int(os.environ.get("RANK", "0")) == 0:
        given.times.write_text(json.dumps(clock.durations_s), "utf-8")
