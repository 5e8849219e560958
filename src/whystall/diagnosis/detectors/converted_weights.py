"""Matrices that a kernel of its own converts right before the product that reads them, in a job that does not learn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of

# Inductor names a kernel after the operators that it fuses: these convert and scale a tensor, and view it differently.
_INDUCTOR: Final = re.compile(
    r"^triton_poi_fused_(?=\w*to_copy)((_?to_copy|convert_element_type|mul|sub|t|transpose|permute|view|clone|expand|"
    r"unsqueeze|reshape|slice)_)+\d+$"
)
_COPIES: Final = "aten::copy_"
# The recorded types of a copy's target and source: weights of 8 bits (two of 4 in each, perhaps) become floating-point.
_FROM_8_BITS: Final = re.compile(
    r'^\["(?:float|c10::(?:Half|BFloat16))", "(?:signed char|unsigned char|c10::Float8_\w+)"'
)
_PRODUCTS: Final = frozenset({"gemm", "grouped-gemm"})


@dataclass(frozen=True, slots=True)
class ConvertedWeights:
    """Device events: the conversions, the products behind them, and the ratio of their times."""

    converts: Mask
    computes: Mask
    ratio: NDArray[np.float64]


def converted_weights(rank: RankCase, *, least_ratio: float) -> ConvertedWeights | None:
    """The pairs in which a conversion takes ``least_ratio`` of its product's time and more; ``None`` without any.

    A conversion of activations is short beside a product with a matrix; that of the matrix itself is not.
    """
    events = rank.trace.device_events
    if rank.trains or events.is_empty():
        return None
    converts = _converting(rank)
    if not converts.any():
        return None
    stream, start = events["stream"].to_numpy(), events["ts_ns"].to_numpy()
    order = np.lexsort((start, stream))
    first, second = order[:-1], order[1:]
    products = np.isin(rank.workings.family, list(_PRODUCTS))
    lasts = durations(rank)
    pair = (stream[first] == stream[second]) & converts[first] & products[second]
    pair &= lasts[first] >= least_ratio * lasts[second]
    found = ConvertedWeights(np.zeros(len(events), np.bool_), np.zeros(len(events), np.bool_), np.ones(len(events)))
    found.converts[first[pair]] = True
    found.computes[second[pair]] = True
    found.ratio[second[pair]] = lasts[first[pair]] / np.maximum(lasts[second[pair]], 1)
    return found if pair.any() else None


def _converting(rank: RankCase) -> Mask:
    named: Mask = rank.device_named(lambda name: bool(_INDUCTOR.match(name)))
    table = rank.trace.operators
    if table.is_empty():
        return named
    casts = np.flatnonzero(matching(table["name"], _COPIES.__eq__))
    casts = casts[judged(table.select("input_types")[casts], lambda types: bool(_FROM_8_BITS.match(types or "")))]
    of_weights = np.zeros(len(table) + 1, np.bool_)
    of_weights[casts] = True
    out: Mask = named | of_weights[rows_of(rank.trace.device_events["operator"])]
    return out
