"""What calls cost that are given, and give, what they were given and gave before."""

from __future__ import annotations

from collections import Counter
from typing import Final

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.candidate import Code
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.samples import NINE_IN_TEN, SPREAD
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.where import Place, heaviest
from whystall.run_folder.description import RepeatedWork

# Of a forward pass of less the ratio of a backward pass to it is chance.
_LEAST_FORWARD: Final = 0.02
# So much of the time of a shared beginning is saved at least, and as expected.
_LEAST_OF_SHARED: Final = 0.4
_OF_SHARED: Final = 0.8


def shares_of(
    case: Case, run: RunSummary, seen: RepeatedWork
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """The share of the steps in such calls and, at most, in going back through them; and what is saved without.

    The latter at least, as expected, at most.
    """
    forward = seen.again_ns / seen.measured_ns
    expected, most = _backward_of(case, run, seen)
    unsure = NINE_IN_TEN * seen.error
    low = forward - max(unsure, SPREAD * forward)
    if is_shared(seen):  # what follows the beginning takes as many calls of operators as the whole
        low, forward_left = low * _LEAST_OF_SHARED, forward * _OF_SHARED
        return (forward, 0.0), (low, forward_left, min(forward + unsure, 1.0))
    return (forward, most), (low, forward + expected, min(forward + most + unsure, 1.0))


def is_shared(seen: RepeatedWork) -> bool:
    """Whether most of it is the beginning of what a model is given, and not all of it."""
    return 2 * seen.shared_ns > seen.again_ns


def _backward_of(case: Case, run: RunSummary, seen: RepeatedWork) -> tuple[float, float]:
    """The share of the steps in the backward pass of repeated calls: as expected, and at most.

    Going back through a call takes as much longer than the call as all backward passes take than all forward ones. Of
    derivatives of derivatives the later ones are of what was different, too: half of it.
    """
    forward, backward = (run.shares.get(part, 0.0) for part in ("forward", "backward"))
    if not seen.differentiated_ns or forward < _LEAST_FORWARD:
        return 0.0, 0.0
    most = min(seen.differentiated_ns / seen.measured_ns * backward / forward, backward)
    twice = any(rank.rank == run.rank and _differentiates_twice(rank) for rank in case.ranks)
    return (most / 2 if twice else most), most


def _differentiates_twice(rank: RankCase) -> bool:
    names = rank.trace.operators["name"].cast(str)
    return bool(names.str.contains("BackwardBackward", literal=True).any())


def called_at(seen: RepeatedWork) -> Code:
    """The lines that call what is computed again."""
    places: Counter[Place | None] = Counter({None: seen.again_ns - sum(one.ns for one in seen.modules)})
    for one in seen.modules:
        places[one.file, one.line, one.text or one.function] += one.ns
    return heaviest(+places)
