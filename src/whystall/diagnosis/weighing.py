"""Weighing candidates against each other: specific causes before general ones, experiments before replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from whystall.diagnosis.bounds import broken
from whystall.diagnosis.candidate import Replayed, Sampled, Valued, Weighed
from whystall.diagnosis.case import Case
from whystall.diagnosis.experiment import bearing, saved_by
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.gains import scaled, together
from whystall.diagnosis.recording import USUAL_NS
from whystall.diagnosis.uniting import merged
from whystall.replay.graph import Change

# A finding fires when its floor is worth this share of the step, or twice the noise (DESIGN, "fire rule").
LEAST_SHARE: Final = 0.02
NOISES: Final = 2.0
LEAST_EXPECTED_ON_CPU: Final = 0.07
"""Without an accelerator a smaller gain is not worth a change: the cost of one fault differs by more between two hours
(`CPU_ERROR`).
"""
_EXPLAINS: Final = 0.7
"""A candidate that saves this share of a symptom's cost is its source."""
_BY_ITSELF: Final = 1 / 3
"""A general cause that keeps this share of its gain without the specific ones has an effect of its own."""
# Slow launches make others long, and waits of the host do (`holds_back`). Less general causes are seldom the root of
# specific ones, and the most general one (exposed communication) is a bound that no remedy reaches.
_ROOTS: Final = 2
# The confidence in an experiment's result.
_TRIED: Final = 0.97
_UNEXPLAINED: Final = 0.1
"""A loss of which the usual cost of recording leaves less than this share may be recording alone: its cost differs
twofold between machines (`USUAL_NS`)."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The candidates that fire, the most valuable first, those that take time without a name, and the rest."""

    firing: list[Weighed]
    follows: list[tuple[Weighed, Weighed]]
    """Consequences of a firing candidate, with that candidate: no findings of their own."""
    nameless: list[Weighed]
    quiet: list[Weighed]
    failures: list[str]
    """Candidates that exceeded their limits and were dropped, as sentences."""


def weigh(case: Case, candidates: Sequence[Valued]) -> Verdicts:
    """All candidates, weighed and split by whether their removal is worth while."""
    failures: list[str] = []
    weighed = merged(_by_tiers(case, candidates, failures))
    firing = [one for one in weighed if _fires(case, one)]
    quiet = [one for one in weighed if not _fires(case, one)]
    firing.sort(key=lambda one: (-worth(one), one.candidate.tier, one.candidate.cause))
    named = [one for one in firing if not one.candidate.nameless]
    follows = _follows(named)
    return Verdicts(
        [one for one in named if all(one is not late for late, _ in follows)],
        follows,
        [one for one in firing if one.candidate.nameless],
        quiet,
        failures,
    )


def worth(one: Weighed) -> float:
    """The rank of a cause: its own gain, or, for one that is mostly a symptom of others, the gain that it adds to them.

    A gain that depends on others' removal does not lift it above them.
    """
    root = one.candidate.tier == _ROOTS or one.candidate.holds_back
    if one.candidate.tier > 0 and root and one.adds >= _BY_ITSELF * one.expected:
        return one.expected
    return min(one.adds, one.expected)


def _follows(firing: Sequence[Weighed]) -> list[tuple[Weighed, Weighed]]:
    """Symptoms, such as a rank that the others wait for, and the cause on the same rank that explains most of each."""
    out = []
    for late in (one for one in firing if one.candidate.symptom_of):
        roots = [
            one
            for one in firing
            if one.candidate.cause.startswith(late.candidate.symptom_of)
            and one.candidate.tier == 0
            and one.candidate.ranks == late.candidate.ranks
            and one.expected >= _EXPLAINS * late.expected
        ]
        if roots:
            out.append((late, max(roots, key=lambda one: (one.expected, one.candidate.cause))))
    return out


def least_saved(case: Case, one: Weighed | None = None) -> float:
    """The share of a step that a cause must surely save to be named; a cause of the steps' spread needs less."""
    return max(LEAST_SHARE, NOISES * (one.candidate.noise(case) if one is not None else case.noise))


def least_expected(case: Case) -> float:
    """The share of a step that a cause must be expected to save to be named."""
    return max(least_saved(case), _least_worth(case))


def _least_worth(case: Case) -> float:
    return LEAST_SHARE if any(rank.on_device for rank in case.ranks) else LEAST_EXPECTED_ON_CPU


def _fires(case: Case, one: Weighed) -> bool:
    least = least_saved(case, one)
    worth = max(least, _least_worth(case), one.candidate.least_share)
    return one.floor >= least and one.adds >= LEAST_SHARE and one.expected >= worth


def _by_tiers(case: Case, candidates: Sequence[Valued], failures: list[str]) -> list[Weighed]:
    """All candidates weighed, tier by tier: a general cause counts for the gain that it adds to the specific ones.

    Those that break their limits are left out, with a sentence among ``failures``.
    """
    removed: Change | None = None
    out: list[Weighed] = []
    for tier in sorted({one.tier for one in candidates}):
        # A cause has a candidate from samples and one from a replay: one that fires takes the other's change with it.
        own = [_by_experiment(case, one.weigh(case, removed)) for one in candidates if one.tier == tier]
        found = [_as_unrecorded(case, one) for one in merged(_within_bounds(case, own, failures))]
        for one in found:
            if _fires(case, one):
                removed = together(case, removed, one.candidate.removal)
        out += found
    return out


def saved_unrecorded(case: Case, one: Weighed) -> float | None:
    """The share of an estimated unrecorded step that a replayed cause saves; ``None`` where nothing is estimated."""
    candidate = one.candidate
    if case.unrecorded is None or not isinstance(candidate, Replayed) or candidate.removal is None or one.tried:
        return None
    again = candidate.recurrence
    return scaled(case.unrecorded.saved_by(candidate.removal), again.weight(case.steps) if again is not None else 1.0)


def _as_unrecorded(case: Case, one: Weighed) -> Weighed:
    """A cause that would fire, with nothing certain where recording alone may have made its loss."""
    saved = saved_unrecorded(case, one) if _fires(case, one) else None
    if saved is None or saved >= max(LEAST_SHARE, _UNEXPLAINED * one.expected):
        return one
    left = "little" if saved >= LEAST_SHARE else "nothing"
    detail = (
        f"{left} is left if recording took the host {USUAL_NS // 1000} us an event, as it did where that was measured"
    )
    candidate = replace(one.candidate, detail=f"{one.candidate.detail}; {detail}" if one.candidate.detail else detail)
    return replace(one, candidate=candidate, floor=0.0)


def _within_bounds(case: Case, weighed: Sequence[Weighed], failures: list[str]) -> list[Weighed]:
    """Those within the limit of the devices' own work; an experiment is a measurement and needs no limit."""
    out = []
    for one in weighed:
        sentence = broken(case, one) if not one.tried else None
        if sentence is None:
            out.append(one)
        else:
            failures.append(sentence)
    return out


def _by_experiment(case: Case, one: Weighed) -> Weighed:
    """A cause that a further run of the job went without counts by that run's result."""
    candidate = one.candidate
    experiment = bearing(case.facts.experiments, candidate.cause)
    # Short runs may never reach occasional work: then they are no evidence about it.
    if experiment is None or (experiment.base_step_ns or 0) < candidate.span_ns(case) * (1 - one.expected / 2):
        return one
    floor, expected, ceiling = saved_by(experiment)
    method = f"experiment: {experiment.change}"
    if experiment.name == "input":  # it makes no batches at all, which is more than any remedy saves
        floor, expected, ceiling = min(one.floor, ceiling), min(one.expected, ceiling), min(one.ceiling, ceiling)
        method = f"{candidate.method}; an experiment sets the limit: {experiment.change}"
    seen = Evidence(what=f"speed-up in an experiment, {experiment.change}", value=experiment.speedup or 1.0, unit="x")
    return replace(
        one,
        candidate=replace(candidate, evidence=(*candidate.evidence, seen), method=method, confidence=_TRIED),
        floor=floor,
        expected=expected,
        ceiling=ceiling,
        adds=expected if isinstance(candidate, Sampled) else min(one.adds, expected),
        tried=experiment.change,
    )
