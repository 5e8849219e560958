"""A served run as rules see it: means over requests, reasons of the queue, and a replay that is made when asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from whystall.serving.cause import Cause, Evidence, Finding
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer
from whystall.serving.queueing import QueueReasons, queue_reasons
from whystall.serving.records import Ints
from whystall.serving.run_analysis import Analysis

__all__ = ["Case"]


class Case:
    """The facts about a run."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.run = analysis.run
        self.settings = analysis.settings
        self.ledgers = analysis.ledgers

    @cached_property
    def total_ns(self) -> int:
        """The mean time of a request from its intended send to its last token, or else that at the server."""
        if not self.ledgers and self.analysis.means is not None:
            return self.analysis.means.total_ns
        return _mean([one.total_ns for one in self.ledgers])

    @cached_property
    def replayer(self) -> Replayer:
        """Replays of the run."""
        return Replayer(self.analysis)

    @cached_property
    def queue(self) -> QueueReasons:
        """The settings that requests waited for."""
        return queue_reasons(self.analysis)

    def mean(self, *parts: Part) -> int:
        """The mean of some parts over all requests."""
        if not self.ledgers and self.analysis.means is not None:
            return sum(self.analysis.means.parts.get(part, 0) for part in parts)
        return _mean([one.of(*parts) for one in self.ledgers])

    def share(self, cost_ns: float) -> float:
        """A mean time as a share of the mean total."""
        return cost_ns / self.total_ns if self.total_ns else 0.0

    @cached_property
    def per_output_token_ns(self) -> Ints:
        """Times between tokens as the client saw them."""
        requests = self.run.client.requests if self.run.client is not None else ()
        gaps = [np.diff(np.array(one.token_ns, dtype=np.int64)) for one in requests if len(one.token_ns) > 1]
        return np.concatenate(gaps) if gaps else np.zeros(0, dtype=np.int64)

    def predict(self, make: Callable[[Replayer], Prediction | None]) -> Prediction | None:
        """A prediction, without metrics that the replay misses in its own run.

        ``None`` where it misses the median request, or no request is known to replay.
        """
        if not self.ledgers:
            return None
        check = self.replayer.check
        found = make(self.replayer) if check is not None and check.is_trusted else None
        return None if check is None or found is None else check.trusted_part(found)

    def finding(
        self,
        cause: Cause,
        headline: str,
        cost_ns: float,
        *evidence: Evidence,
        remedy: str | None = None,
        certain: bool = True,
        prediction: Prediction | None = None,
    ) -> Finding:
        """A finding with its share of the mean total."""
        return Finding(
            cause, headline, int(cost_ns), self.share(cost_ns), evidence, remedy or cause.remedy, certain, prediction
        )


def _mean(values: list[int]) -> int:
    return round(sum(values) / len(values)) if values else 0
