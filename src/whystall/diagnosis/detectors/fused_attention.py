"""Fused attention's time on a CPU where materialised scores are large."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.link import rows_of
from whystall.vocabulary.autograd import EVALUATES

# Fused attention's time as a share of the written-out products', by head size: forward, and with the backward pass.
# `benchmarks/bench_attention.py`: medians of scores of 32 and 64 MiB in fp32 on two cores.
_SHARES: Final = {16: (0.36, 0.58), 32: (0.45, 0.74), 64: (0.58, 0.88), 128: (0.74, 0.97)}
_BACKWARD: Final = "aten::_softmax_backward_data"
_SOFTMAX: Final = ("aten::_softmax", "aten::_safe_softmax", _BACKWARD)
_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class LargeScores:
    """The remaining share of the products, and the engine's own work in the backward pass of the scores."""

    left: float
    freed: Mask


def large_scores(rank: RankCase, scores: Mask, products: Mask, least_bytes: float) -> LargeScores | None:
    """The effect of fused attention; ``None`` where the scores are small, or the heads have no known size."""
    table = rank.trace.operators
    names = table["name"].cast(str).to_numpy()
    dims = np.array(["" if text is None else str(text) for text in table["input_dims"].cast(str).to_list()])
    softmaxes = np.isin(names, _SOFTMAX) & scores
    held = [math.prod(shape) for text in set(dims[softmaxes]) for shape in _shapes(text)[:1]]
    sizes = [_head(text) for text in dims[products]]
    if not held or max(held) * _BYTES < least_bytes or not sizes:
        return None
    forward, both = _at(float(np.median(sizes)))
    parent = rows_of(table["parent"])
    freed = np.zeros(len(table), np.bool_)
    for depth in parent, np.where(parent >= 0, parent[np.maximum(parent, 0)], -1):
        above = depth[scores & (depth >= 0)]
        freed[above] = True
    freed &= np.char.startswith(names.astype(str), EVALUATES)
    return LargeScores(both if (names[softmaxes] == _BACKWARD).any() else forward, freed)


def _at(head: float) -> tuple[float, float]:
    """The shares of a head size between those that were measured."""
    known = np.log2(sorted(_SHARES))
    forward, both = (
        np.interp(np.log2(max(head, 1.0)), known, [_SHARES[size][at] for size in sorted(_SHARES)]) for at in (0, 1)
    )
    return float(forward), float(both)


def _head(text: str) -> int:
    """The size of a head: of all sides of a batched product the smallest."""
    return min((side for shape in _shapes(text) if len(shape) >= 3 for side in shape[-2:]), default=1)


def _shapes(text: str) -> list[tuple[int, ...]]:
    found = re.findall(r"\[([\d, ]+)\]", text)
    return [tuple(int(number) for number in part.split(",")) for part in found if part.strip(" ,")]
