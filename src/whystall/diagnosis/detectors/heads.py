"""Gradients beyond a head: an optimizer has a model's last layers alone, and backward passes continue below them.

A recording does not state an optimizer's parameters, but every step updates the same number of each shape. A backward
pass reaches a model's last layers first: if the first gradients of every pass match the updated parameters by shape and
number, they are the head's, and later ones belong to other layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import judged
from whystall.trace.recorded_sizes import Shape, first_size, sizes_by_argument

_LEAST_STEPS: Final = 2


def beyond_the_head(rank: RankCase, accumulates: Mask, of_pass: NDArray[np.intp]) -> Mask:
    """The additions of gradients after those of the head, of shapes that it has; none where it is unknown.

    Gradients of other shapes are identified by their shapes. ``of_pass`` is the number of each operator's backward
    pass.
    """
    found = np.zeros(len(accumulates), np.bool_)
    updated = list(_updated(rank))
    if len(updated) < _LEAST_STEPS or any(one != updated[0] for one in updated) or not updated[0]:
        return found
    head, count = updated[0], updated[0].total()
    table = rank.trace.operators
    rows = np.flatnonzero(accumulates)
    rows = rows[np.argsort(table["ts_ns"].to_numpy()[rows], kind="stable")]
    shapes = judged(table.select("input_dims")[rows], first_size)
    for number in np.unique(of_pass[rows]).tolist():
        own = np.flatnonzero(of_pass[rows] == number)
        if len(own) <= count or Counter(shapes[place] for place in own[:count].tolist()) != head:
            return np.zeros(len(accumulates), np.bool_)
        if Counter(shapes[place] for place in own.tolist()) == _times(head, len(own) // count):
            return np.zeros(len(accumulates), np.bool_)  # the same parameters, used more than once
        found[[rows[place] for place in own[count:].tolist() if shapes[place] in head]] = True
    return found


def _times(head: Counter[Shape], often: int) -> Counter[Shape]:
    return Counter({shape: often * times for shape, times in head.items()})


def _updated(rank: RankCase) -> Iterator[Counter[Shape]]:
    """The parameters that each optimizer step updates, counted by shape: each is in the same number of calls of a kind.

    The kind with fewest calls counts. A step without recorded parameters has none.
    """
    table = rank.trace.operators
    begin, end, thread = rank.optimizer_steps
    at, threads = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    outermost = table["parent"].is_null().to_numpy()
    for first, last, own in zip(begin.tolist(), end.tolist(), thread.tolist(), strict=True):
        rows = np.flatnonzero((at >= first) & (at < last) & (threads == own) & outermost)
        calls: dict[str, Counter[Shape]] = {}
        for name, dims in table.select("name", "input_dims")[rows].iter_rows():
            arguments = sizes_by_argument(dims)
            calls.setdefault(name, Counter()).update(size for size in (arguments[0] if arguments else ()) if size)
        least: Counter[Shape] = Counter()
        for counted in calls.values():
            for size, times in counted.items():
                least[size] = min(times, least[size]) if size in least else times
        yield least
