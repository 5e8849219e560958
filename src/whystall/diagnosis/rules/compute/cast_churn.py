"""Tensors that are copied into another floating-point type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.converted_weights import converted_weights
from whystall.diagnosis.detectors.doubles import casts_of_doubles, is_between_casts
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.outer_calls import outer_calls, places_among
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import codes, judged, matching
from whystall.trace.recorded_sizes import Shape, first_size

CAUSE: Final = cause_beside(__name__)
_LEAST_RATIO: Final = CAUSE.threshold("least_ratio")
_LEAST_STORED: Final = CAUSE.threshold("least_stored")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
# Sizes of a tensor without dimensions: a number that became one, which is no data in the wrong type.
_SCALAR: Final = re.compile(r"^\s*\[\s*\[\s*\]")
# Operators of a norm or a softmax, which run in higher precision than their input.
_STATISTICS: Final = frozenset(
    f"aten::{name}"
    for name in ("mean", "rsqrt", "var", "var_mean", "std", "softmax", "log_softmax", "linalg_vector_norm")
)
_BETWEEN: Final = int(CAUSE.threshold("between"))
_SCALES: Final = frozenset({"aten::mul", "aten::mul_", "aten::div", "aten::div_"})
_WHOLE: Final = frozenset({"aten::softmax", "aten::log_softmax"})
"""Operators that compute statistics and divide by them."""
_FLOATING: Final = ("double", "float", "c10::Half", "c10::BFloat16")
"""By precision, the most first."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """Copies from one floating-point type to another, by the types of their arguments."""
    for rank in case.ranks:
        copies, outer = _casts(rank)
        if is_between_casts(rank):  # which is the cause of these (compute.double-precision)
            copies &= ~casts_of_doubles(rank)
        if not copies.any():
            continue
        nodes = case.work_of(rank, copies)
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("copies into another floating-point type", per_step, case.events_of(nodes), per=case.per),
                evidence.count("of them", count_per_step(case, nodes), per=case.per),
            ),
            removal=case.without(nodes | case.host_within_operators(rank, outer)),
            method="replay: without these copies",
            code=code_of(case, nodes),
            remedy=_remedy(case, rank, copies, per_step),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            rivals=("compute.fusible", "compute.layout-conversion"),
        )


def before_products(case: Case) -> Iterator[Replayed]:
    """Matrices that a job which does not learn converts before each product.

    A conversion that is limited by bandwidth moves the stored and the converted numbers, the product the converted
    ones: the ratio of their times shows the stored size, which is all that a product of stored numbers reads.
    """
    for rank in case.ranks:
        found = converted_weights(rank, least_ratio=_LEAST_RATIO)
        if found is None:
            continue
        nodes, products = (case.nodes(rank, device=one) for one in (found.converts, found.computes))
        per_step = case.time_of(nodes)
        if per_step < _LEAST_SHARE * case.step_ns:
            continue
        left = np.clip(found.ratio - 1, _LEAST_STORED, 1.0)
        shorter = case.device_values(rank, np.where(found.computes, left, 1.0), 1.0)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "converting what the product behind it reads", per_step, case.events_of(nodes), per=case.per
                ),
                evidence.time("these products", case.time_of(products), per=case.per),
                evidence.count("of them", count_per_step(case, nodes), per=case.per),
            ),
            removal=case.without(nodes | products, np.where(nodes, 0.0, shorter)),
            floor=case.without(nodes),
            ceiling=case.without(nodes | products, np.where(nodes, 0.0, np.minimum(shorter, _LEAST_STORED))),
            method="replay: the products read the numbers as they are stored",
            detail="before each product, by a kernel of its own",
            code=code_of(case, nodes),
            remedy=CAUSE.remedies["stored"],
            ranks=(rank.rank,),
            uncertainty=0.25,
            confidence=0.85,
            rivals=("compute.fusible", "compute.layout-conversion", "compute.low-tensor-core"),
        )


def _casts(rank: RankCase) -> tuple[Mask, Mask]:
    """The copies of ``aten::_to_copy`` whose tensors differ in floating-point type, and the calls around them."""
    table = rank.trace.operators
    copies, outer = np.zeros(len(table), np.bool_), np.zeros(len(table), np.bool_)
    if table.is_empty():
        return copies, outer
    names = table["name"].cast(str)
    parent = table["parent"].fill_null(-1).to_numpy().astype(np.int64)
    around = (names == "aten::_to_copy").to_numpy()
    inside = (names == "aten::copy_").to_numpy() & (parent >= 0) & around[np.maximum(parent, 0)]
    calls = table.filter(pl.Series(inside)).select("input_types", "input_dims").cast(pl.String).fill_null("").rows()
    known = {call: _changes_float(call[0]) and not _SCALAR.match(call[1]) for call in set(calls)}
    copies[inside] = [known[call] for call in calls]
    copies &= ~_of_autocast(rank, names, parent)
    outer[parent[copies]] = True
    return copies, outer


def _remedy(case: Case, rank: RankCase, copies: Mask, per_step: int) -> Remedy | None:
    """The remedy for norms if most of the casts surround them; ``None`` for the general one."""
    around = copies & _around_statistics(rank, copies)
    return CAUSE.remedies["norms"] if case.time_of(case.work_of(rank, around)) > per_step / 2 else None


def _around_statistics(rank: RankCase, copies: Mask) -> Mask:
    """Copies of casts to higher precision and back, around a norm or a softmax.

    Between them a mean or the like is taken, and the tensor is multiplied or divided by it.
    """
    table = rank.trace.operators
    calls = outer_calls(rank)
    place = places_among(rank, calls)
    given = judged(table.select("input_dims", "input_types").filter(copies), _cast)
    casts = {at: one for at, one in zip(place[copies].tolist(), given, strict=True) if at >= 0}
    statistics, scales = (
        np.append(0, np.cumsum(matching(table["name"], chosen.__contains__)[calls]))
        for chosen in (_STATISTICS, _SCALES | _WHOLE)
    )
    chosen = np.zeros(len(calls), np.bool_)
    last: dict[Shape, int] = {}
    for at in sorted(casts):
        size, wider = casts[at]
        before = last.pop(size, -_BETWEEN - 1)
        if wider:
            last[size] = at
        elif at - before <= _BETWEEN and all(sums[at] > sums[before + 1] for sums in (statistics, scales)):
            chosen[[before, at]] = True
    return (place >= 0) & chosen[np.maximum(place, 0)] if len(calls) else np.zeros(len(table), np.bool_)


def _cast(dims: str | None, types: str | None) -> tuple[Shape, bool]:
    """The size of a copy's tensors, and whether it is made more precise."""
    target, source = [part.strip(" \"'[]") for part in (types or ",").split(",")][:2]
    return first_size(dims), _FLOATING.index(target) < _FLOATING.index(source)


def _of_autocast(rank: RankCase, names: pl.Series, parent: NDArray[np.int64]) -> Mask:
    """The casts of autocast in training, and their backward passes: weights are kept in full precision, and must be.

    It casts in a call of an operator that then calls itself, with the cast arguments. If nothing learns, weights could
    be kept in the precision of their use: its casts count there.
    """
    table, tree = rank.trace.operators, rank.workings.tree
    nothing = np.zeros(len(table), np.bool_)
    if not rank.trains or "sequence" not in table.columns:
        return nothing
    kinds = codes(table["name"])
    itself = (parent >= 0) & (kinds == kinds[np.maximum(parent, 0)])
    wrappers = nothing.copy()
    wrappers[parent[itself]] = True
    asked = names.is_in(["aten::to", "aten::_to_copy"]).to_numpy()
    casts = asked & (parent >= 0) & wrappers[np.maximum(parent, 0)]
    sequence = table["sequence"].fill_null(-1).to_numpy()
    back = rank.backward & (sequence >= 0) & np.isin(sequence, sequence[casts & (sequence >= 0)])
    back &= names.str.contains("ToCopyBackward", literal=True).to_numpy()
    return tree.below(casts | back)


def _changes_float(types: str) -> bool:
    """Whether the first two recorded types (``["float", "c10::BFloat16"]``) are different floating-point types."""
    found = [part.strip(" \"'[]") for part in types.split(",")][:2]
    return len(found) == 2 and found[0] != found[1] and all(kind in _FLOATING for kind in found)


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "operators", "shapes")),
        Finder(before_products, ("trace", "device_events")),
    ),
)
