"""Work: the FLOPs, operations and bytes of every operator call, and which device events did them.

Work comes from recorded shapes through the one cost registry. An operator that contains another counts for both,
so that nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.analysis.convolutions import missing_sizes
from whystall.analysis.kernel_classes import COMPUTE, Classified
from whystall.analysis.operators import OperatorTree
from whystall.cost.recorded import UNKNOWN_DTYPE, parse
from whystall.cost.registry import cost_of
from whystall.cost.result import Cost
from whystall.cost.shapes import results
from whystall.cost.spec import Argument, TensorSpec, tensors
from whystall.hardware.accelerators import Accelerator, Precision
from whystall.json_text import parse_json
from whystall.trace.columns import codes
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

MATRIX_FAMILIES: Final = ("gemm", "grouped-gemm", "convolution", "attention")
"""Families of kernels that do the FLOPs of an operator; kernels beside them prepare or gather."""

PRECISION_OF: Final[dict[str, Precision]] = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
    "float4_e2m1fn_x2": "fp4",
}
_COLUMNS: Final = ("name", "input_dims", "input_types", "concrete_inputs", "input_strides")
_NO_WORK: Final = ("view", "composite", "other", "communication")
_AMOUNTS: Final = ("dense", "causal", "executed", "elementwise", "moved")
# No call does 72 peta-operations or moves 72 petabytes: that takes minutes on the fastest device. Such a shape is
# damaged.
_MOST_WORK: Final = 2**56


@dataclass(frozen=True)
class Call:
    """A distinct call of an operator: its name and the arguments that were recorded, by position.

    ``results`` are the tensors that it returned where these were recorded, too.
    """

    name: str
    arguments: tuple[Argument, ...]
    cost: Cost | None
    results: tuple[TensorSpec, ...] | None = None

    @property
    def written(self) -> int | None:
        """The bytes that it writes; ``None`` where they are not known."""
        return None if self.cost is None else self.cost.bytes_written

    @cached_property
    def given(self) -> tuple[TensorSpec, ...]:
        """The tensors among its arguments, those of lists in their order."""
        return tuple(tensors(self.arguments))

    @cached_property
    def returned(self) -> tuple[TensorSpec, ...] | None:
        """The tensors that it returns; ``None`` where they do not follow from its arguments."""
        return results(self.name, self.arguments) if self.results is None else self.results

    @cached_property
    def read_sizes(self) -> frozenset[int] | None:
        """The sizes in bytes of its input tensors; ``None`` where a dtype's size is not known."""
        try:
            return frozenset(spec.nbytes for spec in self.given)
        except KeyError:
            return None


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Per operator call its counted work (0 where none is), and whether any is.

    ``dense``, ``causal`` and ``executed`` are FLOPs of products, ``elementwise`` all other operations, ``moved`` bytes
    read and written. ``kind_of`` is the place of the call's kind in ``kinds``, -1 where nothing is counted. ``call_of``
    is the place in ``calls`` of a counted call, ``recorded_of`` that of every call with recorded arguments.
    """

    counted: NDArray[np.bool_]
    dense: NDArray[np.int64]
    causal: NDArray[np.int64]
    executed: NDArray[np.int64]
    elementwise: NDArray[np.int64]
    moved: NDArray[np.int64]
    moved_known: NDArray[np.bool_]
    dtype_of: NDArray[np.int32]
    dtypes: list[str]
    kind_of: NDArray[np.int32]
    kinds: list[str]
    call_of: NDArray[np.int32]
    recorded_of: NDArray[np.int32]
    calls: list[Call]

    def handed_over(self, calls: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per neighbouring pair of calls the bytes of the tensor that one writes and the next may read, by its size.

        0: none, -1: not known, as of calls that are not (-1).
        """
        out = np.full(max(len(calls) - 1, 0), -1, np.int64)
        known = (calls[:-1] >= 0) & (calls[1:] >= 0)
        pairs = np.stack([calls[:-1][known], calls[1:][known]], axis=1)
        if len(pairs):
            pairs, place = np.unique(pairs, axis=0, return_inverse=True)
            out[known] = np.array([self._between(*pair) for pair in pairs.tolist()], np.int64)[place.reshape(-1)]
        return out

    def _between(self, before: int, after: int) -> int:
        """All that the first writes, or its largest input where it writes statistics too."""
        written, given, read = self.calls[before].written, self.calls[before].read_sizes, self.calls[after].read_sizes
        if written is None or given is None or read is None:
            return -1
        if written in read:
            return written
        largest = max(given, default=0)
        return largest if largest < written and largest in read else 0


def operator_work(trace: Trace, tree: OperatorTree) -> OperatorWork:
    """The work of every operator call whose shapes were recorded; distinct calls are costed once.

    A call whose shapes ask for more than any device could do is not counted.
    """
    count = len(trace.operators)
    amounts = {name: np.zeros(count, np.int64) for name in _AMOUNTS}
    counted, moved_known = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    dtype_of, kind_of = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    recorded_of = np.full(count, -1, np.int32)
    distinct_calls: list[Call] = []
    dtypes: dict[str, int] = {}
    kinds: dict[str, int] = {}
    table = trace.operators.select(_COLUMNS).with_columns(missing_sizes(trace, tree)).with_row_index("row")
    calls = table.filter(pl.col("input_dims").is_not_null())
    columns = [*_COLUMNS, "missing_sizes"]
    for key, rows in (
        calls.group_by(columns, maintain_order=True).agg("row").select(pl.struct(columns), "row").iter_rows()
    ):
        texts = [None if key[column] is None else str(key[column]) for column in columns]
        arguments = parse(*texts[1:5])
        if arguments is None:
            continue
        cost = _cost(texts[0] or "", arguments, texts[5])
        recorded_of[rows] = len(distinct_calls)
        distinct_calls.append(Call(texts[0] or "", tuple(arguments), cost))
        if cost is None or cost.kind in _NO_WORK:
            continue
        known = cost.bytes_read is not None and cost.bytes_written is not None
        moved = (cost.bytes_read or 0) + (cost.bytes_written or 0) if known else 0
        values = (cost.model_flops, cost.model_flops_causal, cost.executed_flops, cost.elementwise_ops, moved)
        if max(*values, cost.bytes_written or 0) > _MOST_WORK:
            continue
        counted[rows] = True
        kind_of[rows] = kinds.setdefault(cost.kind, len(kinds))
        moved_known[rows] = known
        for name, value in zip(_AMOUNTS, values, strict=True):
            amounts[name][rows] = value
        dtype = _dtype(arguments)
        if dtype is not None:
            dtype_of[rows] = dtypes.setdefault(dtype, len(dtypes))
    if count:
        counted[_hands_on(trace, tree, counted)] = False
        counted &= nearest_marked(tree.order, tree.parent, counted.astype(np.uint8)) < 0
    for values_of_calls in amounts.values():
        values_of_calls[~counted] = 0
    kind_of[~counted] = -1
    return OperatorWork(
        counted=counted,
        moved_known=moved_known & counted,
        dtype_of=dtype_of,
        dtypes=list(dtypes),
        kind_of=kind_of,
        kinds=list(kinds),
        call_of=np.where(counted, recorded_of, -1).astype(np.int32),
        recorded_of=recorded_of,
        calls=distinct_calls,
        **amounts,
    )


def _hands_on(trace: Trace, tree: OperatorTree, counted: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The counted calls that hand on to one of their own name.

    The inner call has the tensors that the kernels get: the pieces of a distributed tensor, the values of a nested or
    wrapped one.
    """
    above = nearest_marked(tree.order, tree.parent, counted.astype(np.uint8))
    name = codes(trace.operators["name"])
    inner = np.flatnonzero(counted & (above >= 0))
    handed: NDArray[np.int32] = above[inner[name[inner] == name[above[inner]]]]
    return handed


def _cost(operator: str, arguments: list[Argument], sizes: str | None) -> Cost | None:
    """The cost of a call, helped by ``sizes`` where its own record lacks the shape of its result or its first size."""
    if sizes is None:
        return cost_of(operator, arguments)
    shape = tuple(parse_json(sizes))
    if arguments[0] is None:
        return cost_of(operator, [list(shape), *arguments[1:]])
    return cost_of(operator, arguments, outputs=[TensorSpec(shape, _dtype(arguments) or UNKNOWN_DTYPE)])


def _dtype(arguments: list[Argument]) -> str | None:
    """The dtype of the call's first floating tensor."""
    for argument in arguments:
        if isinstance(argument, TensorSpec) and "float" in argument.dtype:
            return argument.dtype
    return None


def counted_operator_of(tree: OperatorTree, work: OperatorWork) -> NDArray[np.int32]:
    """Per operator the call that is counted for it: itself or the counted one that it lies in, else -1."""
    if not len(work.counted):
        return np.zeros(0, np.int32)
    above = nearest_marked(tree.order, tree.parent, work.counted.astype(np.uint8))
    return np.where(work.counted, np.arange(len(above), dtype=np.int32), above).astype(np.int32)


@dataclass(frozen=True, slots=True)
class EventWork:
    """Per device event the counted operator call that launched it (-1.

    None), and whether it is that call's main one.
    """

    owner: NDArray[np.int32]
    main: NDArray[np.bool_]


def event_work(trace: Trace, owner_of: NDArray[np.int32], work: OperatorWork, classified: Classified) -> EventWork:
    """Which counted call each device event belongs to.

    The work of a call goes to its main event, so that sums over events equal sums over calls: the longest of its
    kernels, those of `MATRIX_FAMILIES` first where the call has FLOPs.
    """
    events = trace.device_events
    operator = rows_of(events["operator"])
    owner = np.where(operator >= 0, owner_of[np.maximum(operator, 0)], -1) if len(owner_of) else operator * 0 - 1
    duration = events["duration_ns"].to_numpy()
    families = np.array([family in MATRIX_FAMILIES for family in classified.families], np.bool_)
    multiplies = families[classified.family_of] & (work.dense[np.maximum(owner, 0)] > 0) if len(owner_of) else owner > 0
    computes = classified.class_of == COMPUTE
    order = np.lexsort((-np.arange(len(owner)), duration, computes, multiplies, owner))
    last = np.append(np.diff(owner[order]) != 0, True) if len(order) else np.zeros(0, np.bool_)
    main = np.zeros(len(owner), np.bool_)
    main[order[last]] = True
    return EventWork(owner.astype(np.int32), main & (owner >= 0))


def uses_tf32(classified: Classified) -> bool:
    """Whether a kernel's name shows that single precision ran on tensor cores."""
    return bool(classified.has("tf32").any())


def precision_of(dtype: str, *, tf32: bool) -> Precision | None:
    """The column of the accelerator table that work in ``dtype`` is rated by."""
    precision = PRECISION_OF.get(dtype)
    return "tf32" if precision == "fp32" and tf32 else precision


def least_ns(work: OperatorWork, peak: Accelerator | None, *, tf32: bool) -> NDArray[np.float64] | None:
    """Per call the least time that its work could take at the device's peaks; NaN where one is not known."""
    if peak is None or peak.memory_bytes_per_s is None:
        return None
    rates = np.array([*_rates(work.dtypes, peak, tf32=tf32), np.nan])
    compute = np.where(work.causal > 0, work.causal / rates[work.dtype_of], 0.0)
    transfer = np.where(work.moved_known, work.moved / peak.memory_bytes_per_s, np.nan)
    least = np.asarray(np.fmax(compute, transfer) * 1e9, np.float64)
    least[np.isnan(compute) | ~work.counted] = np.nan
    return least


def _rates(dtypes: Sequence[str], peak: Accelerator, *, tf32: bool) -> list[float]:
    precisions = [precision_of(dtype, tf32=tf32) for dtype in dtypes]
    return [np.nan if name is None else peak.peak_flops_per_s(name) or np.nan for name in precisions]


@dataclass(frozen=True, slots=True)
class WorkSums:
    """Work and time summed over groups (families, modules): one value per group in each array.

    ``covered_ns`` is of the time whose operator has a cost, ``sized_ns`` of that whose bytes are known too,
    ``rated_ns`` of that whose least time is.
    """

    calls: NDArray[np.int64]
    dense: NDArray[np.int64]
    causal: NDArray[np.int64]
    moved: NDArray[np.int64]
    least: NDArray[np.float64]
    total_ns: NDArray[np.int64]
    covered_ns: NDArray[np.int64]
    sized_ns: NDArray[np.int64]
    rated_ns: NDArray[np.int64]

    def row(self, group: int) -> GroupWork:
        """The numbers of a group that is one thing.

        Rates over its whole time, if nearly all of the work in it is known.
        """
        total = int(self.total_ns[group])
        if not self.calls[group] or total <= 0:
            return self._without_work(group)
        share = {
            name: int(getattr(self, name)[group]) / total >= NEARLY_ALL
            for name in ("covered_ns", "sized_ns", "rated_ns")
        }
        flops, moved, seconds = int(self.causal[group]), int(self.moved[group]), total / 1e9
        return GroupWork(
            flops=int(self.dense[group]),
            flops_causal=flops,
            bytes=moved if share["sized_ns"] else None,
            flops_per_s=flops / seconds if share["covered_ns"] and flops else None,
            bytes_per_s=moved / seconds if share["sized_ns"] else None,
            roofline=float(self.least[group]) / total if share["rated_ns"] else None,
            covered_share=int(self.covered_ns[group]) / total,
        )

    def part(self, group: int) -> GroupWork:
        """The numbers of a group of separate events: each rate over the events whose work is known for it."""
        covered, sized, rated = (int(getattr(self, name)[group]) for name in ("covered_ns", "sized_ns", "rated_ns"))
        if not self.calls[group] or covered <= 0:
            return self._without_work(group)
        flops, moved = int(self.causal[group]), int(self.moved[group])
        return GroupWork(
            flops=int(self.dense[group]),
            flops_causal=flops,
            bytes=moved if sized >= NEARLY_ALL * covered else None,
            flops_per_s=flops / (covered / 1e9) if flops else None,
            bytes_per_s=moved / (sized / 1e9) if sized else None,
            roofline=float(self.least[group]) / rated if rated else None,
            covered_share=covered / int(self.total_ns[group]),
        )

    def _without_work(self, group: int) -> GroupWork:
        total = int(self.total_ns[group])
        return GroupWork(covered_share=int(self.covered_ns[group]) / total if total > 0 else None)

    def upwards(self, parents: Sequence[int]) -> WorkSums:
        """The sums of each group and all below it, ``parents`` giving the group above (-1: none)."""
        return WorkSums(*(upwards(parents, getattr(self, field.name)) for field in fields(self)))

    def plus(self, other: WorkSums) -> WorkSums:
        """The sums of both."""
        return WorkSums(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def upwards(parents: Sequence[int], values: NDArray[Any]) -> NDArray[Any]:
    """Sums over each group and everything below it; a parent's place is before its children's."""
    out = values.copy()
    for index in range(len(parents) - 1, -1, -1):
        if parents[index] >= 0:
            out[parents[index]] += out[index]
    return out


NEARLY_ALL: Final = 0.95
"""Share of a group's time whose work must be known for its rate; the rest makes it a lower bound."""


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The work of a group of events; ``None`` where it is not known."""

    flops: int | None = None
    flops_causal: int | None = None
    bytes: int | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    roofline: float | None = None
    covered_share: float | None = None


def sums_by_group(
    count: int,
    *,
    calls: NDArray[Any],
    group_of_call: NDArray[Any],
    time_ns: NDArray[np.int64],
    group_of_time: NDArray[Any],
    owner_of_time: NDArray[Any],
    work: OperatorWork,
    least: NDArray[np.float64] | None,
) -> WorkSums:
    """Sums over ``count`` groups of the work of ``calls``, and of spans of time that belong to calls."""
    owned = owner_of_time >= 0
    owner = np.maximum(owner_of_time, 0)
    sized = owned & (work.moved_known[owner] if len(work.counted) else owned)
    known = np.full(len(work.counted), np.nan) if least is None else least
    rated = owned & (np.isfinite(known)[owner] if len(known) else owned)

    def added(values: NDArray[Any], groups: NDArray[Any], dtype: type[Any] = np.int64) -> NDArray[Any]:
        out = np.zeros(count, dtype)
        np.add.at(out, groups, values)
        return out

    chosen = {name: getattr(work, name)[calls] for name in ("dense", "causal", "moved")}
    return WorkSums(
        calls=added(np.ones(len(calls), np.int64), group_of_call),
        **{name: added(values, group_of_call) for name, values in chosen.items()},
        least=added(np.nan_to_num(known[calls]), group_of_call, np.float64),
        total_ns=added(time_ns, group_of_time),
        covered_ns=added(time_ns * owned, group_of_time),
        sized_ns=added(time_ns * sized, group_of_time),
        rated_ns=added(time_ns * rated, group_of_time),
    )
