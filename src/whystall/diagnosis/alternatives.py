"""Other repairs of a finding's loss: causes that it makes superfluous, and whose own removal saves nearly the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whystall.diagnosis.candidate import Replayed, Weighed
from whystall.diagnosis.case import Case
from whystall.diagnosis.gains import saved_by
from whystall.diagnosis.weighing import LEAST_SHARE, least_expected, least_saved

# Minimum share of a finding's saving that another repair of the same loss must bring to be named beside it.
_NEARLY: Final = 0.6


def alternatives(case: Case, one: Weighed, quiet: Sequence[Weighed]) -> list[Weighed]:
    """The quiet rivals of a finding that would be findings without it, the most valuable first."""
    found = [
        other
        for other in quiet
        if other.candidate.cause in one.candidate.rivals
        and one.candidate.cause not in other.candidate.needs_first
        and other.adds < LEAST_SHARE
        and other.floor >= least_saved(case, other)
        and other.expected >= max(_NEARLY * one.expected, least_expected(case))
        and _is_of_the_same_loss(case, one, other)
    ]
    best = {other.candidate.cause: other for other in sorted(found, key=lambda other: other.expected)}
    return sorted(best.values(), key=lambda other: (-other.expected, other.candidate.cause))


def _is_of_the_same_loss(case: Case, one: Weighed, other: Weighed) -> bool:
    """Whether the other saves next to nothing more once the finding's cause is gone."""
    first, second = one.candidate.removal, other.candidate.removal
    if not isinstance(one.candidate, Replayed) or first is None or second is None:
        return False
    before = max(case.window_ns, 1)
    return saved_by(case, first.then(second, case.replayed), before) - saved_by(case, first, before) < LEAST_SHARE
