"""The engine's time from its first to its last step: steps by kind, the engine between them, idle for want of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from whystall.serving.membership import Placed
from whystall.serving.records import Ints, Iterations
from whystall.serving.step_model import prompt_tokens, sequences
from whystall.serving.timeline import Timeline

__all__ = ["StepKind", "StepLedger", "StepsOfKind", "alive_after", "ledger_of_steps"]


class StepKind(StrEnum):
    """The work of a step."""

    DECODE = "decode"
    PREFILL = "prefill"
    MIXED = "mixed"
    RECOMPUTE = "recompute"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class StepsOfKind:
    """Steps of one kind: their number, time and mean composition."""

    kind: StepKind
    count: int
    total_ns: int
    median_ns: int
    longest_ns: int
    prompt_tokens: float
    sequences: float


@dataclass(frozen=True, slots=True)
class StepLedger:
    """Steps, gaps and idle time. ``window_ns`` is their exact sum; without a timeline only the steps are known."""

    kinds: tuple[StepsOfKind, ...]
    busy_ns: int
    gap_ns: int | None
    idle_ns: int | None

    @property
    def window_ns(self) -> int | None:
        """From the begin of the first step to the end of the last."""
        return None if self.gap_ns is None or self.idle_ns is None else self.busy_ns + self.gap_ns + self.idle_ns

    @property
    def load(self) -> float | None:
        """Share of the window in which steps ran or the engine prepared the next one."""
        window = self.window_ns
        return None if not window or self.idle_ns is None else 1.0 - self.idle_ns / window


def ledger_of_steps(steps: Iterations, timeline: Timeline | None, placed: Sequence[Placed | None]) -> StepLedger:
    """The ledger of all steps."""
    tokens, rows = prompt_tokens(steps), sequences(steps)
    kind = np.full(len(steps), StepKind.DECODE.value, dtype=object)
    kind[steps.context_requests > 0] = StepKind.PREFILL.value
    kind[(steps.context_requests > 0) & (steps.generation_requests > 0)] = StepKind.MIXED.value
    kind[steps.generation_tokens > steps.generation_requests] = StepKind.RECOMPUTE.value
    kind[(rows == 0) | (steps.dummy > 0)] = StepKind.EMPTY.value
    kinds = []
    for one in StepKind:
        of_kind = kind == one.value
        if of_kind.any():
            spent = steps.elapsed_ns[of_kind]
            means = float(tokens[of_kind].mean()), float(rows[of_kind].mean())
            facts = int(of_kind.sum()), int(spent.sum()), int(np.median(spent)), int(spent.max())
            kinds.append(StepsOfKind(one, *facts, *means))
    busy = int(steps.elapsed_ns.sum())
    if timeline is None:
        return StepLedger(tuple(kinds), busy, None, None)
    gaps = timeline.start_ns[1:] - timeline.end_ns[:-1]
    idle = int(gaps[alive_after(len(steps), placed)[:-1] == 0].sum())
    return StepLedger(tuple(kinds), busy, int(gaps.sum()) - idle, idle)


def alive_after(count: int, placed: Sequence[Placed | None]) -> Ints:
    """How many requests are still under way after each step."""
    alive = np.zeros(count + 1, dtype=np.int64)
    for one in placed:
        if one is not None:
            alive[one.first_step] += 1
            alive[one.last_step] -= 1
    found: Ints = np.cumsum(alive)[:count]
    return found
