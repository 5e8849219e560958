"""Passes over a sequence that is one token longer than in the pass before: all but one token is recomputed.

Products have recorded row counts. If the rows grow by the same amount from pass to pass, and are a multiple of that
amount, the amount is a batch, and one token was appended to each of its sequences. Sentences sorted by length may also
grow like that for a while: where an append was recorded, or one token picked for each sequence, a few passes are enough
evidence; else more are needed.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import codes, distinct, judged, matching
from whystall.trace.recorded_sizes import Shape, first_size, sizes_by_argument

# Where the two matrices stand among the arguments.
_FIRST_MATRIX: Final = {"aten::mm": 0, "aten::addmm": 1}
# A run of this many growing lengths is no chance.
_LEAST_LENGTHS: Final = 3
_LOOK_UP: Final = "aten::embedding"
_OF_MATRIX: Final = 2
_PICKS: Final = frozenset({"aten::argmax", "aten::multinomial", "aten::topk", "aten::sort", "aten::_softmax"})
_LEAST_WITHOUT_APPENDING: Final = 6


@dataclass(frozen=True, slots=True)
class LongerPass:
    """A pass over the sequence of the one before, and one token more; ``places`` is the number in each sequence."""

    begin_ns: int
    end_ns: int
    places: int
    appended: bool
    """Whether operators were recorded that append one token, or pick the next one of each sequence."""


@dataclass(frozen=True, slots=True)
class Products:
    """Products of two matrices: their rows in the table of operators by time, and rows, depth and columns of each."""

    operator: NDArray[np.int64]
    at: NDArray[np.int64]
    size: NDArray[np.int64]


def products(rank: RankCase, *, differentiated: bool = False) -> Products:
    """The products of matrices that no backward pass will differentiate: they alone can go on from a cache.

    With ``differentiated`` all products of forward passes.
    """
    table = rank.trace.operators
    nothing = Products(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 3), np.int64))
    if table.is_empty():
        return nothing
    first = np.array([_FIRST_MATRIX.get(name, -1) for name in distinct(table["name"])], np.int64)[codes(table["name"])]
    chosen = (first >= 0) & ~rank.backward
    if rank.trains and not differentiated:
        chosen &= table["sequence"].fill_null(-1).to_numpy() < 0
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(table["ts_ns"].to_numpy()[rows], kind="stable")]
    sizes = [
        _size(given, int(at))
        for given, at in zip(judged(table.select("input_dims")[rows], sizes_by_argument), first[rows], strict=True)
    ]
    kept = np.array([size is not None for size in sizes], np.bool_)
    if not kept.any():
        return nothing
    rows = rows[kept]
    return Products(rows, table["ts_ns"].to_numpy()[rows], np.array([size for size in sizes if size is not None]))


def _size(given: Sequence[Sequence[Shape]], at: int) -> Shape | None:
    """Rows, inner dimension and columns of a product of the two arguments from ``at`` on."""
    pair = [one[0] for one in given[at : at + 2] if len(one) == 1 and len(one[0]) == _OF_MATRIX]
    return (*pair[0], pair[1][1]) if len(pair) == _OF_MATRIX else None


def longer_passes(rank: RankCase, found: Products) -> list[LongerPass]:
    """The passes that compute a sequence again because it grew by one place, by time."""
    appended, picked = _appended_to(rank), _picks(rank)
    weights = np.unique(found.size[:, 1:], axis=0, return_inverse=True)[1].ravel() if len(found.at) else found.at
    best: list[LongerPass] = []
    for weight in np.unique(weights):
        of_weight = weights == weight
        passes = _growing(found.at[of_weight], found.size[of_weight, 0], _end(rank), appended, picked)
        best = max(best, passes, key=len)
    return best


def _end(rank: RankCase) -> int:
    table = rank.trace.operators
    return int((table["ts_ns"] + table["duration_ns"]).max() or 0)  # type: ignore[arg-type]


def _appended_to(rank: RankCase) -> set[int]:
    """To how many places operators append one more."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], lambda name: name == "aten::cat"))
    out: set[int] = set()
    for text in set(table["input_dims"].gather(rows).cast(str).to_list()):
        for old, *_, new in (shapes for shapes in sizes_by_argument(text)[:1] if len(shapes) > 1):
            out |= {size for size, added in zip(old, new, strict=False) if added == 1 < size}
    return out


def _picks(rank: RankCase) -> dict[int, list[int]]:
    """For each number of sequences when one token of a vocabulary, the rows of an embedding, was picked for each."""
    table = rank.trace.operators
    chosen = table.filter(matching(table["name"], lambda name: name in _PICKS or name == _LOOK_UP))
    sizes = judged(chosen.select("input_dims"), first_size)
    found: list[tuple[int, int, int]] = []
    vocabularies: set[int] = set()
    for name, at, size in zip(chosen["name"].cast(str), chosen["ts_ns"], sizes, strict=True):
        if len(size) != _OF_MATRIX:
            continue
        if name == _LOOK_UP:
            vocabularies.add(size[0])
        else:
            found.append((*size, at))
    out: dict[int, list[int]] = {}
    for batch, columns, at in sorted(found, key=lambda one: one[-1]):
        if columns in vocabularies:
            out.setdefault(batch, []).append(at)
    return out


def _growing(
    at: NDArray[np.int64], rows: NDArray[np.int64], end: int, appended: set[int], picked: Mapping[int, Sequence[int]]
) -> list[LongerPass]:
    """The passes through products with one matrix whose number of rows is one batch more than in the pass before.

    Layers with the same weights follow each other with the same number of rows.
    """
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    times, lengths = [*at[begins].tolist(), end], rows[begins].tolist()
    out: list[LongerPass] = []
    run: list[int] = []
    for here, (old, new) in enumerate([*pairwise(lengths), (0, 0)], start=1):
        batch = new - old
        same = not run or batch == lengths[run[0]] - lengths[run[0] - 1]
        if batch > 0 and old % batch == 0 and old > batch and same:
            run.append(here)
            continue
        if len(run) + 1 >= _LEAST_LENGTHS:
            grown = lengths[run[0]] - lengths[run[0] - 1]
            picks = picked.get(grown, ())
            seen = bool(appended & {lengths[one - 1] // grown for one in run}) or all(
                bisect(picks, times[one - 1]) < bisect_left(picks, times[one]) for one in run
            )
            if seen or len(run) + 1 >= _LEAST_WITHOUT_APPENDING:
                out += [LongerPass(times[one], times[one + 1], lengths[one] // grown, seen) for one in run]
        run = []
    return out


def operators_within(rank: RankCase, passes: list[LongerPass]) -> tuple[Mask, NDArray[np.int64]]:
    """Which operators run in the passes, and how many places each works on (1 elsewhere)."""
    at = rank.trace.operators["ts_ns"].to_numpy()
    begin = np.array([one.begin_ns for one in passes], np.int64)
    end = np.array([one.end_ns for one in passes], np.int64)
    place = np.searchsorted(begin, at, side="right") - 1
    inside: Mask = (place >= 0) & (at < end[np.maximum(place, 0)])
    count = np.array([one.places for one in passes], np.int64)
    return inside, np.where(inside, count[np.maximum(place, 0)], 1)
