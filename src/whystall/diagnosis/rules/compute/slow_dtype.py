"""Products in a type that this processor has no arithmetic for, as half precision on most CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask

CAUSE: Final = cause_beside(__name__)
_FLOPS_PER_S: Final = CAUSE.threshold("flops_per_thread")
_TIMES_SLOWER: Final = CAUSE.threshold("times_slower")
_LEAST_FLOPS: Final = CAUSE.threshold("least_flops")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_BYTES_PER_S: Final = CAUSE.threshold("bytes_per_s")
_CALL_NS: Final = CAUSE.threshold("call_ns")
_HALVES: Final = ("float16", "bfloat16")
# The rate is that of a usual core in single precision: a core may be this many times faster, or slower.
_FASTER: Final = 3.0


def on_a_cpu(case: Case) -> Iterator[Replayed]:
    """By recorded types: products in half precision that reach a small part of single precision's rate."""
    for rank in case.ranks:
        for dtype in _HALVES:
            yield from _of_type(case, rank, dtype)


def _of_type(case: Case, rank: RankCase, dtype: str) -> Iterator[Replayed]:
    products = _products(rank, dtype)
    if not products.any():
        return
    lasts = rank.trace.operators["duration_ns"].to_numpy()[products]
    needed = _needed_ns(rank, products)
    left = min(needed / max(float(lasts.sum()), 1.0), 1.0)
    nodes = case.host_within_operators(rank, products)
    per_step = case.time_of(nodes)
    if left * _TIMES_SLOWER > 1 or per_step < _LEAST_SHARE * case.step_ns:
        return
    yield Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time(f"products in {dtype}", per_step, case.events_of(nodes), per=case.per),
            evidence.time(
                "what they take in float32 on one usual core",
                int(left * per_step),
                per=case.per,
            ),
        ),
        removal=case.without(nodes, left),
        floor=case.without(nodes, min(left * _FASTER, 1.0)),
        ceiling=case.without(nodes, left / _FASTER),
        method="replay: the same products at the rate of single precision on a usual core",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.3,
        confidence=0.9,
        detail=dtype,
        rivals=("compute.cast-churn", "host.small-operators", "compute.at-limit"),
    )


def _needed_ns(rank: RankCase, products: Mask) -> float:
    """The time of the same products in single precision on one core, with the calls that each consists of."""
    work, tree = rank.workings.work, rank.workings.tree
    calls = int(np.count_nonzero(products | tree.below(products)))
    moved = 2.0 * work.moved[products] / _BYTES_PER_S  # twice the bytes
    arithmetic = np.maximum(work.executed[products] / _FLOPS_PER_S, moved)
    return float(arithmetic.sum()) * 1e9 + calls * _CALL_NS


def _products(rank: RankCase, dtype: str) -> Mask:
    """Products of a type, large enough that calling them is no matter."""
    work = rank.workings.work
    if dtype not in work.dtypes:
        return np.zeros(len(work.counted), np.bool_)
    chosen: Mask = work.counted & (work.dtype_of == work.dtypes.index(dtype)) & (work.executed >= _LEAST_FLOPS)
    return chosen


RULE = Rule(CAUSE, (Finder(on_a_cpu, ("trace", "no_device", "operators", "shapes")),))
