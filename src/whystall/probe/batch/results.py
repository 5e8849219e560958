"""The results of probing a batch, and the request and answers of a probe's process; free of torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from whystall.model.prediction.request import Request

Outcome = Literal["fits", "over the limit", "out of memory", "killed", "ended", "timed out"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one probe: the largest batch first, then smaller ones, none of them after ``curve_s``."""

    request: Request
    batches: tuple[int, ...]
    curve_s: float


class BatchRun(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it ran: the most memory of its tensors, and the median time of a step with its optimizer.

    With several ``ranks``, each of which has the batch, the memory is the fullest's and the time the slowest's.
    """

    batch: int
    held_bytes: int
    steps: int
    step_ns: int
    fastest_ns: int
    slowest_ns: int
    ranks: int = 1

    @property
    def samples_per_s(self) -> float:
        """The throughput of all ranks together."""
        return self.batch * self.ranks / self.step_ns * 1e9


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a probe's output: a batch that ran, or why it did not."""

    ran: BatchRun | None = None
    out_of_memory: str | None = None
    failed: str | None = None
    absent: str | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One probe: a process that ran a batch, with the prediction for it."""

    batch: int
    predicted_bytes: int
    outcome: Outcome
    held_bytes: int | None = None
    said: str | None = None

    @property
    def fits(self) -> bool:
        """Whether the batch really ran, within the limit."""
        return self.outcome == "fits"


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all probes: ``curve`` is the batches that ran in the last probe that fitted, smallest first.

    ``knee`` is the smallest of them that nearly reaches the highest throughput; ``because`` is the reason if nothing
    ran.
    """

    attempts: tuple[Attempt, ...] = ()
    curve: tuple[BatchRun, ...] = ()
    knee: int | None = None
    because: str | None = None

    @property
    def largest(self) -> int | None:
        """The largest batch that really fitted."""
        return max((one.batch for one in self.attempts if one.fits), default=None)
