"""A run's data for tools that draw curves: each metric with its names and unit, declared once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric as Prometheus names it, and as OpenTelemetry does: there the unit (UCUM) is no part of the name."""

    name: str
    otel: str
    kind: Literal["histogram", "gauge"] = "gauge"
    unit: str = "1"
    meaning: str


STEP_DURATION: Final = Metric(
    name="whystall_step_duration_seconds",
    otel="whystall.step.duration",
    kind="histogram",
    unit="s",
    meaning="Time from one step's end to the next one's, steps under the profiler left out.",
)
PART_SHARE: Final = Metric(
    name="whystall_step_part_share",
    otel="whystall.step.part.share",
    meaning="Share of the latest steps (of a run that has ended: of all) that a part takes on the training thread.",
)
PACE: Final = Metric(
    name="whystall_step_pace_ratio",
    otel="whystall.step.pace",
    meaning="Median of the latest steps against that of the first steady ones.",
)
LEDGER_SHARE: Final = Metric(
    name="whystall_ledger_share",
    otel="whystall.ledger.share",
    meaning="Share of the recorded window that a part of the ledger takes on a device.",
)
GAIN: Final = Metric(
    name="whystall_finding_gain_ratio",
    otel="whystall.finding.gain",
    meaning="Expected speed-up of a step without a cause that was found.",
)
METRICS: Final = (STEP_DURATION, PART_SHARE, PACE, LEDGER_SHARE, GAIN)

_NUMBERED: Final = ("rank", "device")
_NAMED: Final = ("part", "cause")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values by size: ``counts`` has one more than ``bounds``, for those above the last of them."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float
    since_unix_ns: int = 0
    """When counting began; 0: not known."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric, with its subject."""

    metric: Metric
    labels: Mapping[str, str]
    value: float | Histogram

    @property
    def path(self) -> str:
        """One name for tools that know no labels.

        >>> Point(LEDGER_SHARE, {"rank": "0", "device": "1", "part": "idle_sync"}, 0.25).path
        'whystall_ledger_share/rank0/device1/idle_sync'
        """
        labels = [f"{label}{self.labels[label]}" for label in _NUMBERED if label in self.labels]
        return "/".join([self.metric.name, *labels, *(self.labels[label] for label in _NAMED if label in self.labels)])


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The times of a rank's steps, with their numbers and ends (0: not known)."""

    rank: int
    steps: Sequence[int]
    ended_unix_s: Sequence[float]
    seconds: Sequence[float]

    @property
    def path(self) -> str:
        """The series' name for tools that know no labels."""
        return f"{STEP_DURATION.name}/rank{self.rank}"

    @property
    def histogram_path(self) -> str:
        """The name of its histogram."""
        return f"{self.path}/histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The data of a finished run."""

    run: str
    verdict: str
    cause: str | None
    numbers: Mapping[str, float]
    """Those of the whole run, by the path of their point."""
    times: Sequence[StepTimes]
    markdown: str
    page: str
    """The report in HTML."""

    @property
    def began_unix_s(self) -> float:
        """When the first step ended; 0: not known."""
        return min((times.ended_unix_s[0] for times in self.times if times.steps), default=0.0)
