"""The change of one experiment in a watched process, and the end of the process once enough steps were measured.

An experiment is a further run of the command that the user requested. One thing differs from the run it is compared
with: batches are handed out again instead of made, garbage is not collected, logging is silent, or torch uses another
number of threads.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from whystall.capture import clock
from whystall.capture.config import ExperimentSetup, TrialSetup

# Two runs of the same job differ more in their first steps than by the effect under test.
FEWEST_STEPS: Final = 12


class Injected:
    """The change of one experiment, in the process it lives in. Every method may raise: the session guards them."""

    def __init__(self, torch: Any, experiment: ExperimentSetup) -> None:
        self._torch = torch
        self._experiment = experiment
        self._began_ns = 0
        self.note: str | None = None
        """Its change, once made; an experiment without it shows nothing."""
        self.seen: dict[str, Any] | None = None

    def install(self) -> None:
        """Changes before the first batch; called before the session's own hooks."""
        if self._experiment.name == "input":
            self._repeat_batches()

    def first_step(self) -> None:
        """Changes once the model exists."""
        self._began_ns = clock.monotonic_ns()
        change: Callable[[], None] | None = {
            "gc": self._freeze_garbage,
            "logging": self._silence_logging,
            "threads": self._change_threads,
        }.get(self._experiment.name)
        if change is not None:
            change()

    def step_ended(self, steps: int) -> None:
        """Ends the process after enough steps, at once: nothing of the job's own end (checkpoints) is run."""
        end_after_enough(steps, self._began_ns, self._experiment)

    def _repeat_batches(self) -> None:
        """A loader's first batch stands for all that follow; epochs keep their length."""
        from torch.utils.data import dataloader  # noqa: PLC0415 - the user has imported torch

        iterator = dataloader._BaseDataLoaderIter  # noqa: SLF001
        iterator.__next__ = _repeating(iterator.__next__, self)

    def _freeze_garbage(self) -> None:
        was_on = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        if was_on:
            self.note = f"garbage collection off, {gc.get_freeze_count():,} objects frozen"

    def _silence_logging(self) -> None:
        logging.disable(logging.CRITICAL)
        self.note = "logging silent"

    def _change_threads(self) -> None:
        before = int(self._torch.get_num_threads())
        after = before // 2 if before > 1 else len(os.sched_getaffinity(0))
        if after != before:
            self._torch.set_num_threads(after)
            self.note = f"{after} threads instead of {before}"


def end_after_enough(steps: int, began_ns: int, setup: ExperimentSetup | TrialSetup) -> None:
    """Ends the process, at once, after enough steps, or enough time since it began (by the monotonic clock)."""
    long_enough = clock.monotonic_ns() - began_ns > setup.longest_s * 1e9
    if steps >= setup.steps or (long_enough and steps >= FEWEST_STEPS):
        for child in multiprocessing.active_children():  # a loader's workers would wait for a parent that is gone
            child.terminate()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(0)


def _repeating(original: Callable[[Any], Any], told: Injected) -> Callable[[Any], Any]:
    """``__next__`` of a loader's iterator; it takes one batch from the loader for each data set."""
    kept: dict[int, tuple[object, Any]] = {}  # the data set is held, so that its id stays its own

    def __next__(self: Any) -> Any:  # noqa: N807 - it takes the place of one
        key = id(self._dataset)
        given = getattr(self, "_whystall_given", 0)
        if key not in kept:
            kept[key] = (self._dataset, original(self))
        else:
            with contextlib.suppress(TypeError):  # an iterable data set has no length: continue
                if given >= len(self):
                    self._whystall_given = 0
                    raise StopIteration
            told.note = "every batch the first one again"
        self._whystall_given = given + 1
        return kept[key][1]

    return __next__
