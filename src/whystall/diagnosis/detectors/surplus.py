"""Gradients of a backward pass beyond those that later optimizer steps read, by their shapes and order.

A generator behind its critic has layers of its critic's shapes: shapes do not show which of two gradients of one shape
the critic's optimizer reads. Each parameter's gradient is made once in a pass, and those of one network follow each
other: next to gradients that are known to be lost, the surplus of a shape over the optimizers' parameters is lost too.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import judged
from whystall.trace.recorded_sizes import Shape, all_sizes, first_size, sizes_by_argument

# Operators that optimizers call once for each parameter, or once for all: the first one present counts.
_ONCE: Final = ("aten::lerp_", "aten::addcdiv_", "aten::addcmul_", "aten::mul_", "aten::add_")


def beside_lost(rank: RankCase, accumulates: Mask, lost: Mask, of_pass: NDArray[np.intp]) -> Mask:
    """The additions of gradients that stand next to lost ones, and that no optimizer has a parameter for."""
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    rows = np.flatnonzero(accumulates)
    if not (lost[rows]).any():
        return out
    at = table["ts_ns"].to_numpy()
    rows = rows[np.argsort(at[rows], kind="stable")]
    shapes = judged(table.select("input_dims")[rows], first_size)
    steps = _parameters_of_steps(rank)
    passes = of_pass[rows]
    numbers = np.unique(passes)
    begins = {number: int(at[rows[passes == number]].min()) for number in numbers.tolist()}
    for number, after in zip(numbers.tolist(), [*numbers[1:].tolist(), None], strict=True):
        until = begins[after] if after is not None else None
        read: Counter[Shape] = Counter()
        for begin, parameters in steps:
            if begins[number] < begin and (until is None or begin < until):
                read += parameters
        places = np.flatnonzero(passes == number).tolist()
        if read and lost[rows[places]].any():
            for place in _beside([shapes[place] for place in places], lost[rows[places]].tolist(), read):
                out[rows[places[place]]] = True
    return out


def tells_sizes(rank: RankCase) -> bool:
    """Whether operators of optimizers' steps receive tensors, or lists of these: custom kernels record none."""
    table = rank.trace.operators
    begin, end, _ = rank.optimizer_steps
    inside = within(table["ts_ns"].to_numpy(), begin, end)
    given = table.select("input_types", "input_dims").filter(inside).unique()
    return any(
        "TensorList" in (types or "") or any(all_sizes(dims)) for types, dims in given.cast(pl.String).iter_rows()
    )


def _beside(shapes: list[Shape], lost: list[bool], read: Counter[Shape]) -> list[int]:
    """The places, in order of time, that count as lost too: next to a lost one, of a shape made more often than read.

    If no optimizer reads a shape, something else may have read it.
    """
    spare = Counter(shapes)
    spare.subtract(read)
    spare.subtract(shape for shape, gone in zip(shapes, lost, strict=True) if gone)
    found, gone = [], list(lost)
    for order, step in ((range(len(shapes) - 1, -1, -1), 1), (range(len(shapes)), -1)):
        for place in order:
            beside = 0 <= place + step < len(shapes) and gone[place + step]
            if beside and not gone[place] and read[shapes[place]] > 0 and spare[shapes[place]] > 0:
                spare[shapes[place]] -= 1
                gone[place] = True
                found.append(place)
    return found


def _parameters_of_steps(rank: RankCase) -> list[tuple[int, Counter[Shape]]]:
    """The begin of each optimizer step, and its number of parameters of each shape; none where they are unknown."""
    table = rank.trace.operators
    begin, end, _ = rank.optimizer_steps
    at = table["ts_ns"].to_numpy()
    inside = np.flatnonzero(within(at, begin, end))
    names = table["name"].cast(str).gather(inside).to_list()
    told = table["input_dims"].cast(str).fill_null("").gather(inside).to_list()
    step = np.searchsorted(np.sort(begin), at[inside], side="right") - 1
    by_step: list[dict[str, Counter[Shape]]] = [{} for _ in range(len(begin))]
    for name, dims, number in zip(names, told, step.tolist(), strict=True):
        arguments = sizes_by_argument(dims)
        if arguments and (name in _ONCE or len(arguments[0]) > 1):
            by_step[number].setdefault(name, Counter()).update(arguments[0])
    out = []
    for start, found in zip(np.sort(begin).tolist(), by_step, strict=True):
        lists = [name for name in found if name not in _ONCE]
        chosen = next((name for name in (*lists, *_ONCE) if name in found), None)
        if chosen is not None:
            out.append((start, found[chosen]))
    return out
