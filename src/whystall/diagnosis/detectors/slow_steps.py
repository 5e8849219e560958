"""Time lost in slow steps of a job with an accelerator, beyond its other steps.

Host time of a usual step may be hidden behind queued work, which only a trace shows. A step that takes longer than the
others has lost that time, unless the others only seem short: a host that runs ahead for a while and then waits does its
device's work all the same. So the loss is at most the steps' excess over the usual one, and over the devices' work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.detectors.samples import code_of_lines, from_samples, lines_where, share_of
from whystall.diagnosis.rank_case import RankCase
from whystall.vocabulary.step_parts import OTHER


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """The slow steps of a run, and the share of its time that they lost."""

    run: RunSummary
    share: float

    def lost(self, *parts: str) -> float:
        """The share of the run's time that they lost in some parts."""
        return self.share * self.run.lost_when_slow(*parts) / max(self._lost_ns, 1)

    def lost_for(self, part: str) -> float:
        """The same in one part, with the loss between the parts in those steps that lost most in that one.

        A state is copied before it is saved.
        """
        own = [
            step for step in self.run.slow if max(step.lost_ns, key=lambda one: step.lost_ns[one], default="") == part
        ]
        beside = sum(step.lost_ns.get(OTHER, 0) for step in own)
        seen = sum(step.lost_ns.get(OTHER, 0) for step in self.run.slow)
        return self.lost(part) + self.lost(OTHER) * beside / max(seen, 1)

    def lost_at(self, lines: list[SampledLine]) -> float:
        """The share that they lost between the parts, where the thread was found at some lines for longer than usual.

        The steps of these samples are unknown. They may all fall between the parts of a usual step, for instance if
        each step logs: that is no loss of the slow ones.
        """
        usual = max(self.run.shares.get(OTHER, 0.0) - self.lost(OTHER), 0.0)
        return min(max(share_of(lines) - usual, 0.0), self.lost(OTHER))

    @property
    def _lost_ns(self) -> int:
        parts = self.run.slow_lost_ns or {part for step in self.run.slow for part in step.lost_ns}
        return self.run.lost_when_slow(*parts)


def slow_steps(case: Case) -> list[SlowSteps]:
    """The slow steps of each rank that works on a device and whose run was measured."""
    found = []
    for rank in case.ranks:
        run = next((one for one in case.runs if one.rank == rank.rank), None)
        if not rank.on_device or run is None or run.measured < FEWEST_SAMPLED_STEPS or not run.slow_count:
            continue
        beyond = run.total_ns - max(run.median_ns, _works_ns(rank)) * run.measured
        share = min(run.slow_ns, beyond) / max(run.total_ns, 1)
        if share > 0:
            found.append(SlowSteps(run, share))
    return found


def of_slow_steps(
    cause: str, slow: SlowSteps, share: float, part: str, lines: list[SampledLine], rivals: tuple[str, ...]
) -> Sampled:
    """A candidate for the loss of slow steps with one reason."""
    run = slow.run
    return from_samples(
        cause,
        run,
        share,
        part=part,
        evidence=(
            evidence.time("lost in slow steps for it, on average", round(share * run.mean_ns), per="step"),
            evidence.share("of the steps' time", share),
            evidence.count("slow steps", slow.run.slow_count),
        ),
        code=code_of_lines(lines),
        method="samples: what slow steps took beyond the others",
        rivals=rivals,
    )


def lost_at_lines(
    case: Case, cause: str, rivals: tuple[str, ...], test: Callable[[SampledLine], bool]
) -> Iterator[Sampled]:
    """The loss of slow steps at lines that pass a test, as far as the training thread was found there."""
    for slow in slow_steps(case):
        lines = lines_where(slow.run, test)
        share = slow.lost_at(lines)
        if share > 0:
            yield of_slow_steps(cause, slow, share, "", lines, rivals)


def _works_ns(rank: RankCase) -> int:
    """How long the busiest device of a rank works in a step, as it was recorded."""
    works = (np.median([step.busy_ns for step in device.steps]) for device in rank.analysis.devices if device.steps)
    return int(max(works, default=0))
