"""The operator calls that go over scores of attention which a job, or torch on its behalf, writes out."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from whystall.analysis.backward import forward_operator_of
from whystall.diagnosis.detectors.kernels import MATRIX_PRODUCTS
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import all_sizes

_ATTENTION_MATH: Final = re.compile(r"_scaled_dot_product_attention_math")
_SOFTMAX: Final = ("aten::_softmax", "aten::_safe_softmax", "aten::_softmax_backward_data")
_FORWARD_SOFTMAX: Final = frozenset(_SOFTMAX[:2])
_KEEPS_WEIGHTS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "to",
        "_to_copy",
        "copy_",
        "clone",
        "contiguous",
        "dropout",
        "native_dropout",
        "bernoulli_",
        "mul",
        "mul_",
    )
)
"""Operators between the softmax and the values. A sum or a division would be another method (slot attention)."""
_BATCHED_PRODUCTS: Final = ("aten::bmm", "aten::baddbmm", "aten::matmul")


def written_by_torch(rank: RankCase) -> Mask:
    """The operator calls in the written-out form of scaled dot product attention, which torch chose."""
    math = matching(rank.trace.operators["name"], _ATTENTION_MATH.search)
    return math | rank.workings.tree.below(math)


def score_calls(rank: RankCase, least_scores: int) -> Mask:
    """Operator calls with a tensor [..., rows, columns] of scores.

    It is as large as those of the run's softmaxes, or inside the written-out form of scaled dot product attention.
    """
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return out
    dims = table["input_dims"]
    names = table["name"].cast(str)
    softmaxes = dims.filter(names.is_in(list(_SOFTMAX)).to_numpy())
    sizes = _score_sizes(softmaxes.drop_nulls().unique().cast(str).to_list(), least_scores)
    if sizes:
        batched = names.is_in(list(_BATCHED_PRODUCTS)).to_numpy()
        written = {text: _written(text) for text in dims.filter(batched).drop_nulls().unique().cast(str).to_list()}
        # Words and experts are chosen by softmaxes too: scores are results of a batched product.
        sizes &= set(written.values())
        passing = {text: _holds(text, sizes) for text in dims.drop_nulls().unique().cast(str).to_list()}
        texts = ["" if text is None else str(text) for text in dims.to_list()]
        out |= np.array([passing.get(text, False) for text in texts], np.bool_)
        out |= batched & np.array([written.get(text) in sizes for text in texts], np.bool_)
    found: Mask = out | written_by_torch(rank)
    return found


def score_calls_by_order(rank: RankCase, *, most_before: int, most_after: int) -> Mask:
    """The same in a recording without sizes: batched products around a softmax, and the operators between them.

    There are ``most_before`` operators between the scores and the softmax, and ``most_after`` behind it, at the most.
    """
    table, tree = rank.trace.operators, rank.workings.tree
    found = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return found
    launches = np.zeros(len(table) + 1, np.bool_)
    launches[rows_of(rank.trace.device_events["operator"])] = True
    rows = np.flatnonzero(launches[:-1] & ~rank.backward & (table["thread"].to_numpy() == rank.training))
    rows = rows[np.argsort(table["ts_ns"].to_numpy()[rows], kind="stable")]
    names = table["name"].cast(str).gather(rows).to_list()
    for place in (place for place, name in enumerate(names) if name in _FORWARD_SOFTMAX):
        first = _nearest_product(names, range(place - 1, max(place - 2 - most_before, -1), -1))
        last = _nearest_product(names, range(place + 1, min(place + 2 + most_after, len(names))))
        if first is not None and last is not None and _KEEPS_WEIGHTS.issuperset(names[place + 1 : last]):
            found[rows[first : last + 1]] = True
    forward = forward_operator_of(rank.trace, tree)
    found |= (forward >= 0) & found[forward]
    return found | written_by_torch(rank)


def _nearest_product(names: list[str], places: range) -> int | None:
    """The first of some places that is a product, if that is a batched one."""
    place = next((one for one in places if names[one] in MATRIX_PRODUCTS), None)
    return place if place is not None and names[place] in _BATCHED_PRODUCTS else None


def _score_sizes(softmaxes: list[str], least_scores: int) -> set[int]:
    """How many elements the scores have that softmaxes go over; a softmax over few rows is no attention."""
    tensors = [tensor for text in softmaxes for tensor in all_sizes(text) if len(tensor) >= 3]
    scores = [tensor for tensor in tensors if min(tensor[-2:]) >= 1 and tensor[-2] >= least_scores]
    return {int(np.prod(tensor)) for tensor in scores}


def _holds(text: str, sizes: set[int]) -> bool:
    return any(len(tensor) >= 3 and int(np.prod(tensor, dtype=object)) in sizes for tensor in all_sizes(text))


def _written(text: str) -> int | None:
    """How many elements the result of a batched product has."""
    tensors = [tensor for tensor in all_sizes(text) if len(tensor) >= 3]
    return int(np.prod((*tensors[-2][:-1], tensors[-1][-1]), dtype=object)) if len(tensors) >= 2 else None
