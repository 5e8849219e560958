"""How right a verdict is: pure functions from what is known and what was said to marks, and from marks to a summary."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.accuracy.expectation import LIMITS, Expectation
from benchmarks.accuracy.verdicts import Named, Said


@dataclass(frozen=True, slots=True)
class GainMark:
    """A predicted gain beside the true one."""

    cause: str
    true: float
    floor: float
    expected: float
    ceiling: float

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of the truth."""
        return abs(self.expected / self.true - 1)

    @property
    def covered(self) -> bool:
        """Whether the truth lies in the interval, rounding aside."""
        return self.floor * 0.9995 <= self.true <= self.ceiling * 1.0005


@dataclass(frozen=True, slots=True)
class Mark:
    """How one job was judged."""

    name: str
    healthy: bool
    expected: tuple[str, ...]
    true_gains: tuple[float | None, ...]
    said: str | None
    said_ids: tuple[str, ...]
    top1: bool
    recall3: float | None
    false_alarms: tuple[str, ...]
    rank_named: bool | None
    gains: tuple[GainMark, ...]
    failure: str = ""
    stated: float | None = None
    """The confidence of the cause that is named, where one is."""
    broken: tuple[str, ...] = ()
    """What does not hold of the report that holds of every report."""


def mark(expectation: Expectation, said: Said) -> Mark:
    """One job's mark."""
    shown = tuple(each for each in said.findings if each.alarming)
    gains = tuple(made for cause in expectation.gains if (made := _gain(expectation, said, cause)) is not None)
    return Mark(
        expectation.name,
        expectation.healthy,
        tuple(expectation.gains),
        tuple(expectation.gains.values()),
        said.cause,
        tuple(each.id for each in said.findings[:5]),
        not said.failure and _top1(expectation, said),
        _recall(expectation, said),
        _false_alarms(expectation, shown),
        _rank_named(expectation, said),
        gains,
        said.failure,
        next((each.confidence for each in shown if each.id == said.cause), None),
        said.broken,
    )


def _top1(expectation: Expectation, said: Said) -> bool:
    if not expectation.healthy:
        return said.cause in expectation.first
    return said.cause is None or said.cause in LIMITS or not _alarming(said, said.cause)


def _alarming(said: Said, cause: str) -> bool:
    return any(each.alarming for each in said.findings if each.id == cause)


def _recall(expectation: Expectation, said: Said) -> float | None:
    if expectation.healthy:
        return None
    ids = {each.id for each in said.findings[:3]}
    if ids & set(expectation.accepted):
        return 1.0
    return len(ids & set(expectation.gains)) / len(expectation.gains)


def _false_alarms(expectation: Expectation, shown: Sequence[Named]) -> tuple[str, ...]:
    """On a healthy job every alarm is false; on another only what it is said to resist."""
    if expectation.healthy:
        return tuple(each.id for each in shown if each.id not in LIMITS)
    return tuple(each.id for each in shown if each.id in expectation.resists)


def _rank_named(expectation: Expectation, said: Said) -> bool | None:
    if expectation.rank is None:
        return None
    return any(each.ranks == (expectation.rank,) for each in said.findings if each.id in expectation.all_ids)


def _gain(expectation: Expectation, said: Said, cause: str) -> GainMark | None:
    true = expectation.gains[cause]
    ids = (cause, *expectation.accepted)
    named = next((each for wanted in ids for each in said.findings if each.id == wanted), None)
    if true is None or named is None or named.expected is None or named.floor is None or named.ceiling is None:
        return None
    return GainMark(cause, true, named.floor, named.expected, named.ceiling)


@dataclass(frozen=True, slots=True)
class Summary:
    """The marks of many jobs. Shares are of those jobs to which the question applies; ``None`` without any."""

    jobs: int
    faulty: int
    top1: float | None
    recall3: float | None
    healthy: int
    healthy_with_alarm: int
    ranks_named: float | None
    gains: int
    median_gain_error: float | None
    coverage: float | None
    failures: int


def summary(marks: Sequence[Mark]) -> Summary:
    """What the marks come to."""
    faulty = [each for each in marks if not each.healthy]
    healthy = [each for each in marks if each.healthy]
    gains = [gain for each in faulty for gain in each.gains]
    return Summary(
        jobs=len(marks),
        faulty=len(faulty),
        top1=_mean([each.top1 for each in faulty]),
        recall3=_mean([each.recall3 for each in faulty if each.recall3 is not None]),
        healthy=len(healthy),
        healthy_with_alarm=sum(bool(each.false_alarms) or not each.top1 for each in healthy),
        ranks_named=_mean([each.rank_named for each in faulty if each.rank_named is not None]),
        gains=len(gains),
        median_gain_error=statistics.median(gain.error for gain in gains) if gains else None,
        coverage=_mean([gain.covered for gain in gains]),
        failures=sum(bool(each.failure) for each in marks),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass(frozen=True, slots=True)
class Ablation:
    """What was said with and without a signal."""

    name: str
    removed: str
    expected: tuple[str, ...]
    before: str | None
    after: str | None
    truthful: bool
    left_open: bool = False
    """Whether the cause is only among those that the verdict says it cannot tell apart."""


def ablation(expectation: Expectation, removed: str, before: Said, after: Said) -> Ablation:
    """Whether a verdict stays true without a signal: it may fall silent, or leave the cause open.

    It may not turn to another cause.
    """
    silent = after.cause is None or after.cause in LIMITS or not _alarming(after, after.cause)
    named = silent or after.cause in expectation.all_ids or (not before.failure and after.cause == before.cause)
    said = next((each for each in after.findings if each.id == after.cause), None)
    left_open = not named and said is not None and bool(set(said.could_be) & set(expectation.all_ids))
    return Ablation(
        expectation.name,
        removed,
        tuple(expectation.gains),
        before.cause,
        after.cause,
        (named or left_open) and not after.failure,
        left_open,
    )
