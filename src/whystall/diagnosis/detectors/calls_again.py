"""The cost of repeated calls: same inputs, same results."""

from __future__ import annotations

from collections import Counter
from math import exp
from typing import Final

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.candidate import Code
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.samples import NINE_IN_TEN, SPREAD
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.where import Place, heaviest
from whystall.run_folder.observations import RepeatedWork

# Below this share of the forward pass, its ratio to the backward pass is chance.
_LEAST_FORWARD: Final = 0.02
# The backward pass of products and convolutions takes twice as long: gradients of the input and of the weights.
_OF_PRODUCTS: Final = 2.0
# With fewer repeated calls their number is uncertain; the expectation may have been this small where two occurred.
_FEWEST_AGAIN: Final = 2
_LEAST_OF_FEW: Final = 0.35
# Saved share of the time of a shared beginning, at least and as expected.
_LEAST_OF_SHARED: Final = 0.4
_OF_SHARED: Final = 0.8
# The same for equal rows: fewer rows take the same number of operator calls, and are scattered back at the end. The
# saving was 0.22 (four rows left of 32, through 16 numbers) to 0.94 (ten of 320, a recurrent layer) over six measured
# modules.
_LEAST_OF_ALIKE: Final = 0.25
_OF_ALIKE: Final = 0.75


def shares_of(
    case: Case, run: RunSummary, seen: RepeatedWork
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """The share of the steps in such calls and, at most, in their backward pass; and the saving without them.

    The latter at least, as expected, at most.
    """
    if comes_by_itself(seen):
        return _asked_again(run, seen)
    forward = seen.again_ns / seen.measured_ns
    expected, most = _backward_of(case, run, seen)
    unsure = NINE_IN_TEN * seen.error
    low = forward - max(unsure, SPREAD * forward)
    if is_shared(seen):  # the part after the beginning takes the same number of operator calls as the whole
        low, forward_left = low * _LEAST_OF_SHARED, forward * _OF_SHARED
        return (forward, 0.0), (low, forward_left, min(forward + unsure, 1.0))
    return (forward, most), (low, forward + expected, min(forward + most + unsure, 1.0))


def shares_of_alike(
    case: Case, run: RunSummary, seen: RepeatedWork
) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """The same for equal rows within a call."""
    forward = seen.again_ns / seen.measured_ns
    expected, most = _backward_of(case, run, seen)
    unsure = NINE_IN_TEN * seen.error
    low = max((forward - unsure) * _LEAST_OF_ALIKE, 0.0)
    return (forward, most), (low, (forward + expected) * _OF_ALIKE, min(forward + most + unsure, 0.99))


def _asked_again(run: RunSummary, seen: RepeatedWork) -> tuple[tuple[float, float], tuple[float, float, float]]:
    """The saving for inputs that recur at random, with an estimate of how many distinct ones exist.

    With ``N`` equally likely inputs a pair of calls is equal with probability ``1/N``: the pairs that recurred among
    the examined calls give ``N``, and ``N`` gives the share that recurs in all calls of the run.
    """
    share = seen.kind_ns / seen.measured_ns
    pairs = seen.kind_calls * (seen.kind_calls - 1) / 2
    calls = run.all_steps * seen.kind_calls / seen.steps
    fewest = max(seen.calls - NINE_IN_TEN * seen.calls**0.5, _LEAST_OF_FEW)
    low, expected = (share * _again(pairs / seen_again, calls) for seen_again in (fewest, seen.calls))
    return (share, 0.0), (low * (1 - SPREAD), expected, share)


def _again(different: float, calls: float) -> float:
    """The recurring share of ``calls`` calls with ``different`` possible inputs.

    >>> round(_again(10.0, 1000.0), 2), round(_again(1e6, 1000.0), 3)
    (0.99, 0.0)
    """
    each = calls / max(different, 1.0)
    return max(1 - (1 - exp(-each)) / each, 0.0)


def comes_by_itself(seen: RepeatedWork) -> bool:
    """Whether it is a part of the inputs that recurred out of turn, beside parts that were new."""
    return seen.kind_ns > 0 and seen.calls >= _FEWEST_AGAIN and not is_shared(seen)


def is_shared(seen: RepeatedWork) -> bool:
    """Whether most of it is the beginning of a model's input, and not all of it."""
    return 2 * seen.shared_ns > seen.again_ns


def _backward_of(case: Case, run: RunSummary, seen: RepeatedWork) -> tuple[float, float]:
    """The share of the steps in the backward pass of repeated calls: as expected, and at most.

    The backward pass of a call has the same ratio to the call as all backward passes have to all forward ones. For
    higher derivatives the later passes also cover work that was not repeated: half of it counts.
    """
    forward, backward = (run.shares.get(part, 0.0) for part in ("forward", "backward"))
    if not seen.differentiated_ns or forward < _LEAST_FORWARD:
        return 0.0, 0.0
    longer = backward / forward
    if len(case.runs) > 1:
        # The backward pass of a job of several ranks ends in waiting for the others.
        longer = min(longer, _OF_PRODUCTS)
    most = min(seen.differentiated_ns / seen.measured_ns * longer, backward)
    twice = any(rank.rank == run.rank and _differentiates_twice(rank) for rank in case.ranks)
    return (most / 2 if twice else most), most


def _differentiates_twice(rank: RankCase) -> bool:
    names = rank.trace.operators["name"].cast(str)
    return bool(names.str.contains("BackwardBackward", literal=True).any())


def called_at(seen: RepeatedWork) -> Code:
    """The lines that call the repeated work."""
    places: Counter[Place | None] = Counter({None: seen.again_ns - sum(one.ns for one in seen.modules)})
    for one in seen.modules:
        places[one.file, one.line, one.text or one.function] += one.ns
    return heaviest(+places)
