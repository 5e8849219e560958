"""The limit that waiting requests waited for: a place among the running ones, blocks, or tokens of the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from whystall.serving.parts import Part
from whystall.serving.records import Iterations
from whystall.serving.run_analysis import Analysis

__all__ = ["QueueReasons", "queue_reasons"]

Flags = npt.NDArray[np.bool_]
_FULL_PERMILLE: Final = 900  # of blocks, as in `rules/kv/pressure.toml`


@dataclass(frozen=True, slots=True)
class QueueReasons:
    """Time of steps in which requests waited, by the first limit that was reached, summed over requests."""

    seats_ns: int = 0
    blocks_ns: int = 0
    budget_ns: int = 0

    def share(self, which_ns: int) -> float:
        """One reason as a share of all."""
        total = self.seats_ns + self.blocks_ns + self.budget_ns
        return which_ns / total if total else 0.0


def queue_reasons(analysis: Analysis) -> QueueReasons:
    """The reasons for all requests that waited while steps passed, or those of the steps if none is placed."""
    steps, times, settings = analysis.run.iterations, analysis.timeline, analysis.settings
    if steps is None:
        return QueueReasons()
    running = steps.context_requests + steps.generation_requests
    tokens = steps.context_tokens + steps.generation_tokens
    seats = running >= settings.max_num_seqs if settings.max_num_seqs else np.zeros(len(steps), dtype=np.bool_)
    budget = np.zeros(len(steps), dtype=np.bool_)
    if settings.max_num_batched_tokens:
        budget = ~seats & (tokens >= settings.max_num_batched_tokens)
    if times is None:
        return _of_steps(steps, seats, budget)
    length = np.diff(times.end_ns, prepend=times.start_ns[:1])
    sums = [np.concatenate(([0], np.cumsum(np.where(flag, length, 0)))) for flag in (seats, ~seats & ~budget, budget)]
    found = [0, 0, 0]
    for ledger, placed in zip(analysis.ledgers, analysis.placed, strict=True):
        waited = ledger.parts.get(Part.QUEUE, 0)
        if placed is None or not waited:
            continue
        first = placed.first_step
        begin = int(np.searchsorted(times.start_ns, times.start_ns[first] - waited))
        for place, one in enumerate(sums):
            found[place] += int(one[first] - one[min(begin, first)])
    return QueueReasons(*found)


def _of_steps(steps: Iterations, seats: Flags, budget: Flags) -> QueueReasons:
    """The time of steps at each limit: if it is unknown when requests waited, they waited there."""
    blocks = ~seats & (steps.kv_permille >= _FULL_PERMILLE)
    found = (int(steps.elapsed_ns[flag].sum()) for flag in (seats, blocks, budget & ~blocks))
    return QueueReasons(*found)
