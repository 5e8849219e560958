"""Draws of tokens behind a sort of many scores, in a recording without sizes.

Sampling shows by the order of its operators on one thread: a sort, running sums of the probabilities, then a draw, and
no product between these. Torch sorts rows of up to 4,096 numbers by kernels of its own and longer ones by CUB or
rocPRIM, so the kernels' names separate a vocabulary from a short list. The time of a softmax over
the same scores is a measure of their bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

SORTS: Final = frozenset({"aten::sort", "aten::argsort", "aten::msort"})
"""Operators that sort."""
_SUMS: Final = frozenset({"aten::cumsum", "aten::cumsum_"})
_MULTINOMIAL: Final = "aten::multinomial"
_NOISE: Final = "aten::exponential_"
_CHOOSES: Final = "aten::argmax"
_SOFTMAX: Final = "aten::_softmax"
_LONG_SORTS: Final = re.compile(r"(?:cub|rocprim)\b.*(?:sort|onesweep)", re.IGNORECASE)
_SHORT_SORTS: Final = re.compile(r"SortKVInPlace|warpMergeSort", re.IGNORECASE)
_PRODUCTS: Final = frozenset({"gemm", "grouped-gemm", "attention", "convolution"})


@dataclass(frozen=True, slots=True)
class SortedDraws:
    """Device events from each sort to its draw, how often that happens, and measures of the scores' bytes.

    ``softmax_ns`` is the time of one softmax for each draw, ``sort_ns`` that of the sorts.
    """

    events: Mask
    draws: int
    softmax_ns: float
    sort_ns: float


def sorted_draws(rank: RankCase) -> SortedDraws | None:
    """The draws behind sorts of more than 4,096 scores, by operators and kernels; ``None`` where there are none."""
    if rank.trains or rank.trace.operators.is_empty() or rank.trace.device_events.is_empty():
        return None
    begin, end, until = _from_sort_to_draw(rank)
    launched = rank.launch_time
    owner = rows_of(rank.trace.device_events["operator"])
    softmax = _made_by(rank, owner, _SOFTMAX)
    product = np.isin(rank.workings.family, list(_PRODUCTS)) & (launched >= 0)
    long_sort = rank.device_named(lambda name: bool(_LONG_SORTS.search(name)) and not _SHORT_SORTS.search(name))
    lasts, events = durations(rank), np.zeros(len(launched), np.bool_)
    draws, softmax_ns, sort_ns = 0, 0.0, 0.0
    for first, sorted_until, last in zip(begin.tolist(), until.tolist(), end.tolist(), strict=True):
        inside = (launched >= first) & (launched <= last)
        sort = inside & (launched <= sorted_until)
        since = launched[product & (launched < first)].max(initial=-1)
        near = softmax & (launched > since) & (launched <= last)
        if (inside & product).any() or not (long_sort & sort).any() or not near.any():
            continue
        events |= inside
        draws, softmax_ns, sort_ns = draws + 1, softmax_ns + lasts[near].max(), sort_ns + lasts[sort].sum()
    return SortedDraws(events, draws, float(softmax_ns), float(sort_ns)) if draws else None


def _from_sort_to_draw(rank: RankCase) -> tuple[Times, Times, Times]:
    """Per draw when the sort before it begins, when the draw ends, and when the sort ends."""
    table = rank.trace.operators
    own = np.flatnonzero(table["thread"].to_numpy() == rank.training)
    own = own[np.argsort(table["ts_ns"].to_numpy()[own], kind="stable")]
    at = table["ts_ns"].to_numpy()[own]
    until = at + table["duration_ns"].to_numpy()[own]
    sorts = matching(table["name"], SORTS.__contains__)
    sorts = (sorts & ~rank.workings.tree.below(sorts))[own]
    sums = matching(table["name"], _SUMS.__contains__)[own]
    noise = matching(table["name"], _NOISE.__eq__)[own]
    draws = matching(table["name"], _MULTINOMIAL.__eq__)[own]
    draws |= matching(table["name"], _CHOOSES.__eq__)[own] & (_last(sums) < _last(noise)) & (_last(noise) >= 0)
    sort_of = _last(sorts)[np.maximum(_last(sums), 0)]
    behind = draws & (_last(sums) >= 0) & (sort_of >= 0)
    places = np.flatnonzero(behind)
    _, which = np.unique(sort_of[places], return_index=True)  # the first draw behind each sort
    places = places[which]
    return at[sort_of[places]], until[places], until[sort_of[places]]


def _last(chosen: Mask) -> NDArray[np.int64]:
    """Per place the last chosen one up to it, or -1."""
    out: NDArray[np.int64] = np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1))
    return out


def _made_by(rank: RankCase, owner: NDArray[np.int32], name: str) -> Mask:
    """The device events that operators of a name launched."""
    named = np.append(matching(rank.trace.operators["name"], name.__eq__), False)
    made: Mask = named[owner]
    return made
