"""Kernels, copies on a CPU and parts of convolutions that only put a tensor into another order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.cost import kind_of
from whystall.cost.compiled import fused_name
from whystall.cost.registry import known_operators
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.converted_convolutions import converted_convolutions
from whystall.diagnosis.detectors.gathered_columns import gathered_columns
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.kernels import BANDWIDTH_REACHED, costliest_call, durations, operators_of, shortened
from whystall.diagnosis.detectors.plain_layouts import plain_layouts
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.json_text import parse_json
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import first_size

CAUSE: Final = cause_beside(__name__)
_MOST_PARENTS: Final = 4
# The job's own calls make at least this share of the copies; else a library chose the order.
_LEAST_CALLED: Final = 1 / 3
# Some of the copies may be needed: one that puts tensors in order once, for all later operators, is one of them.
_UNSURE: Final = 0.3
_TWO: Final = 2  # the target and the source of a copy; and matrices, which products read in either order
# Views that change the order of dimensions, and what makes a copy in the new one.
_REORDERING: Final = frozenset({"transpose", "permute", "t", "movedim", "swapaxes", "channel_shuffle"})
_COPYING: Final = frozenset({"copy", "copy_", "clone", "contiguous"})
_ASKS: Final = re.compile(
    r"^aten::(copy_|clone|contiguous|_to_copy|to|reshape|channel_shuffle)$|conv(olution)?", re.IGNORECASE
)
_CONVOLUTION: Final = re.compile(r"^aten::\w*conv(olution|_transpose)?\d?d?", re.IGNORECASE)
_OF_A_PICTURE: Final = 4
_MOSTLY: Final = 0.5
# A kernel's name by itself.
_BY_NAME_ALONE: Final = 0.6
_WITHOUT_CONVOLUTIONS: Final = Remedy(
    text="Keep tensors in the order in which they are used: drop .contiguous() where the next operator takes strides, "
    "and transpose the weights once instead of the activations in every step.",
    patch=None,
    risk="An operator that needs contiguous memory makes the copy itself.",
)


_Orders = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""A size, and two orders in which its dimensions stand in memory."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels named after it, and those of operators that make a tensor contiguous.

    An operator on tensors of both orders reads one of them across its rows: in one order it would move its bytes.
    """
    for rank in case.ranks:
        contiguous = _of_contiguous(rank)
        compiled = rank.device_named(lambda name: fused_name(name, known_operators()) is not None)
        named = np.where(compiled, rank.device_named(_only_reorders), rank.workings.classified.has("layout"))
        chosen = (named | contiguous) & ~rank.workings.could_use_tensor_cores
        chosen &= ~converted_convolutions(rank).converts  # which are compute.slow-convolution
        if not chosen.any():
            continue
        convolves = _of_pictures(rank, chosen)
        nodes = case.nodes(rank, device=chosen)
        per_step = case.time_of(nodes)
        across = _across(rank, contiguous & chosen) & ~chosen
        needed = np.where(chosen, 0.0, rank.workings.transfer_ns() / BANDWIDTH_REACHED)
        beside = case.nodes(rank, device=across)
        told = (
            evidence.time("sums and the like of tensors in both", case.time_of(beside), per=case.per),
            evidence.time(
                "the same in one layout", int(case.time_of(beside) * _left(rank, across, needed)), per=case.per
            ),
        )
        costliest = costliest_call(rank, chosen)
        beside_it = told if across.any() else (evidence.text("the costliest call", costliest),) if costliest else ()
        otherwise = None if convolves else _WITHOUT_CONVOLUTIONS
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("kernels that change a layout", per_step, case.events_of(nodes), per=case.per),
                evidence.count("of them", count_per_step(case, nodes), per=case.per),
                *beside_it,
            ),
            removal=shortened(case, rank, chosen | across, needed),
            floor=case.without(nodes, _UNSURE) if across.any() else None,
            method="replay: without these kernels"
            + (", and with what works on both layouts at the bandwidth of copies" if across.any() else ""),
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=_UNSURE,
            confidence=0.85 if _asked_for(rank, chosen) else _BY_NAME_ALONE,
            rivals=("compute.fusible",),
            # A memory format is a property of convolutions. Elsewhere a copy into another order is a link of a chain
            # first.
            tier=0 if convolves else 2,
            remedy=CAUSE.remedies["carried"] if across.any() else otherwise,
        )


def _of_pictures(rank: RankCase, copies: Mask) -> bool:
    """Whether copies may serve convolutions over places, whose tensors have a memory format (``channels_last``).

    That needs such convolutions, by the operators or else by kernels' names, and copies mostly of tensors with four
    or more dimensions, where sizes are recorded.
    """
    table = rank.trace.operators
    convolution = matching(table["name"], lambda name: bool(_CONVOLUTION.match(name))) if len(table) else np.zeros(0)
    known = rows_of(rank.trace.device_events["operator"]) >= 0
    if known.any() and not convolution.any():
        return False
    if not known.any() and not (rank.workings.family == "convolution").any():
        return False
    if "input_dims" not in table.columns:
        return True
    operator = rows_of(rank.trace.device_events["operator"])[copies]
    took = durations(rank)[copies]
    sizes = judged(table.select("input_dims")[np.maximum(operator, 0)], first_size)
    size = np.where(operator >= 0, [len(one) for one in sizes], 0)
    recorded = float(took[size > 0].sum())
    return recorded == 0 or float(took[size >= _OF_A_PICTURE].sum()) >= _MOSTLY * recorded


def _only_reorders(name: str) -> bool:
    """Whether the name of a kernel of Inductor's shows that it only reorders a tensor.

    A kernel that computes names the views of its inputs, too.
    """
    fused = fused_name(name, known_operators())
    if fused is None or fused.unknown or not _REORDERING.intersection(fused.operators):
        return False
    return all(one in _COPYING or kind_of(f"aten::{one}") in ("memory", "view") for one in fused.operators)


def _asked_for(rank: RankCase, events: Mask) -> bool:
    """Whether operators that copy, or convolutions, launched most of some kernels: better evidence than names."""
    operator = rows_of(rank.trace.device_events["operator"])
    asks = matching(rank.trace.operators["name"], lambda name: bool(_ASKS.search(name)))
    known = np.append(asks | rank.workings.tree.below(asks), values=False)[operator]
    took = durations(rank)
    return float(took[events & known].sum()) >= _MOSTLY * float(took[events].sum())


def in_trace_of_a_cpu(case: Case) -> Iterator[Replayed]:
    """Copies between tensors of the same sizes and dtype whose places in memory stand in another order."""
    for rank in case.ranks:
        copies = _reorders(rank.trace.operators)
        own = rank.trace.operators["self_ns"].to_numpy()
        if own[copies & ~_of_library(rank)].sum() <= _LEAST_CALLED * own[copies].sum():
            continue
        convolves = bool(matching(rank.trace.operators["name"], lambda name: name == "aten::convolution").any())
        nodes = case.work_of(rank, copies)
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("copies into another layout", per_step, case.events_of(nodes), per=case.per),
                evidence.count("of them", count_per_step(case, nodes), per=case.per),
            ),
            removal=case.without(nodes),
            method="replay: without these copies",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            # An operator that reads a tensor in another order than memory's may take longer.
            uncertainty=0.3 if convolves else 0.6,
            confidence=0.85 if convolves else 0.7,
            tier=0 if convolves else 2,
            remedy=None if convolves else _WITHOUT_CONVOLUTIONS,
        )


def in_trace_of_convolutions(case: Case) -> Iterator[Replayed]:
    """Convolutions on a CPU that reorder their input, if that takes as long as their arithmetic."""
    for rank in case.ranks:
        found = plain_layouts(rank)
        if found is None:
            continue
        least, expected, most = (case.operator_values(rank, left, 1.0) for left in found.left)
        nodes = case.work_of(rank, found.left[1] < 1)
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "in depthwise and pointwise convolutions, and what lies between them, with channels first",
                    per_step,
                    case.events_of(nodes),
                    per=case.per,
                ),
                evidence.count("depthwise ones in the recording", found.depthwise),
                evidence.count("pointwise ones", found.pointwise),
            ),
            removal=case.without(nodes, expected),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: what they take with their channels last, by measured shares",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.1,
            confidence=0.85,
            detail="depthwise convolutions put their tensors into another order, and back, in each call",
            rivals=("compute.at-limit", "compute.redundant-work"),
        )


def in_trace_of_columns(case: Case) -> Iterator[Replayed]:
    """Columns that are picked from a matrix of rows, on a CPU."""
    for rank in case.ranks:
        found = gathered_columns(rank)
        if found is not None:
            yield found.candidate(case, rank, CAUSE)


def _across(rank: RankCase, copies: Mask) -> Mask:
    """Elementwise device events whose first tensor has the source's order, and the second the copies' order.

    Their result takes over the order of the first one, and is copied again. A tensor that is transposed for a product,
    and whose result is transposed back, has other sizes there, or is in order first.
    """
    table, nothing = rank.trace.operators, np.zeros(len(copies), np.bool_)
    if not copies.any() or not {"input_strides", "input_dims"} <= set(table.columns):
        return nothing
    pairs = map(_both_orders, *_recorded(table, operators_of(rank, copies)))
    copied = {(size, source, target) for size, target, source in filter(None, pairs)}
    rows = np.flatnonzero(matching(table["name"], lambda name: kind_of(name) == "elementwise"))
    if not copied or not len(rows):
        return nothing
    mixed = np.zeros(len(table) + 1, np.bool_)
    mixed[rows] = [_both_orders(dims, strides) in copied for dims, strides in zip(*_recorded(table, rows), strict=True)]
    found: Mask = mixed[rows_of(rank.trace.device_events["operator"])] & (rank.workings.transfer_ns() > 0)
    return found


def _recorded(table: pl.DataFrame, rows: NDArray[np.intp]) -> tuple[list[str | None], list[str | None]]:
    dims, strides = (table[name][rows].cast(pl.String).to_list() for name in ("input_dims", "input_strides"))
    return dims, strides


def _both_orders(dims: str | None, strides: str | None) -> _Orders | None:
    """The size and the two orders of the first two tensors of a call, where those are of one size and differ."""
    try:
        sizes, apart = parse_json(dims or ""), parse_json(strides or "")
        first, second = (_order(sizes[at], apart[at]) for at in range(_TWO))
    except (ValueError, TypeError, IndexError):
        return None
    if sizes[0] != sizes[1] or first is None or second is None or first == second:
        return None
    return tuple(sizes[0]), tuple(first), tuple(second)


def _left(rank: RankCase, events: Mask, needed_ns: NDArray[np.float64]) -> float:
    """The share of the time of some device events that they need."""
    took = durations(rank)[events]
    return float(np.minimum(needed_ns[events], took).sum()) / max(float(took.sum()), 1.0)


def _of_library(rank: RankCase) -> Mask:
    """Which operators run within a backward pass or a convolution: copies there are not the job's own."""
    convolutions = matching(rank.trace.operators["name"], lambda name: name == "aten::convolution")
    return rank.workings.tree.below(rank.backward | convolutions)


def _reorders(table: pl.DataFrame) -> Mask:
    """Which operators copy a tensor of at least three dimensions into another order."""
    nothing = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return nothing
    rows = np.flatnonzero(matching(table["name"], lambda name: name == "aten::copy_"))
    nothing[rows] = judged(table.select("input_dims", "input_types", "input_strides")[rows], _is_another_order)
    return nothing


def _is_another_order(*recorded: str | None) -> bool:
    if not all(recorded):
        return False
    sizes, types, strides = (parse_json(text) for text in recorded if text)
    if len(sizes) < _TWO or sizes[0] != sizes[1] or types[0] != types[1] or len(sizes[0]) <= _TWO:
        return False
    target, source = (_order(sizes[0], strides[at]) for at in range(_TWO))
    return target is not None and source is not None and target != source


def _order(sizes: list[int], strides: list[int]) -> list[int] | None:
    """The dimensions larger than 1 as they lie in memory; ``None`` where it has gaps, or shares elements."""
    dimensions = sorted((one for one in range(len(sizes)) if sizes[one] > 1), key=lambda one: -strides[one])
    expected = 1
    for one in reversed(dimensions):
        if strides[one] != expected:
            return None
        expected *= sizes[one]
    return dimensions


def _of_contiguous(rank: RankCase) -> Mask:
    """Device events of operators that copy a tensor into another order of the same dtype."""
    events = rank.trace.device_events
    names = rank.trace.operators["name"].cast(str).to_list() if len(rank.trace.operators) else []
    parent = rows_of(rank.trace.operators["parent"]) if names else np.zeros(0, np.int32)
    wanted = np.array([name == "aten::contiguous" for name in names], np.bool_)
    out = np.zeros(len(events), np.bool_)
    at = rows_of(events["operator"]).copy()
    for _ in range(_MOST_PARENTS):
        known = at >= 0
        if not known.any() or not len(wanted):
            break
        out |= known & wanted[np.maximum(at, 0)]
        at = np.where(known, parent[np.maximum(at, 0)], -1)
    return out


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events")),
        Finder(in_trace_of_a_cpu, ("trace", "no_device", "operators", "shapes")),
        Finder(in_trace_of_convolutions, ("trace", "no_device", "operators", "shapes")),
        Finder(in_trace_of_columns, ("trace", "no_device", "operators", "shapes")),
    ),
)
