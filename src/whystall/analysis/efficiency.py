"""Efficiency: the FLOPs and bytes that operators did, against what the device could have done.

Work comes from recorded shapes through the one cost registry; time from the device's events. An operator
that contains another counts for both, so that nothing counts twice. A peak that is not known is ``None``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.analysis.classify import Classified
from whystall.analysis.operators import OperatorTree
from whystall.analysis.results import Device, DeviceEfficiency, Operator, WorkByDtype
from whystall.cost.recorded import parse
from whystall.cost.registry import cost_of
from whystall.cost.spec import Argument, TensorSpec
from whystall.hardware.accelerators import Accelerator, Precision, find
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

_COLUMNS: Final = ("name", "input_dims", "input_types", "concrete_inputs", "input_strides")
_NO_WORK: Final = ("view", "composite", "other", "communication")
_PRECISION_OF: Final[dict[str, Precision]] = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
    "float4_e2m1fn_x2": "fp4",
}
_TF32_NAME: Final = re.compile(r"tf32|s1688|s16816", re.IGNORECASE)
# Work of a dtype without a known peak may be left out of the rating only while it is this small.
_NEGLIGIBLE: Final = 0.01


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Per operator call the work that is counted for it (0 where none is), and whether any is."""

    counted: NDArray[np.bool_]
    dense: NDArray[np.int64]
    causal: NDArray[np.int64]
    executed: NDArray[np.int64]
    moved: NDArray[np.int64]
    moved_known: NDArray[np.bool_]
    dtype_of: NDArray[np.int32]
    dtypes: list[str]


def operator_work(trace: Trace, tree: OperatorTree) -> OperatorWork:
    """The work of every operator call whose shapes were recorded; distinct calls are costed once."""
    count = len(trace.operators)
    work = {name: np.zeros(count, np.int64) for name in ("dense", "causal", "executed", "moved")}
    counted = np.zeros(count, np.bool_)
    moved_known = np.zeros(count, np.bool_)
    dtype_of = np.full(count, -1, np.int32)
    dtypes: dict[str, int] = {}
    calls = trace.operators.select(_COLUMNS).with_row_index("row").filter(pl.col("input_dims").is_not_null())
    for key, rows in calls.group_by(_COLUMNS).agg("row").select(pl.struct(_COLUMNS), "row").iter_rows():
        texts = [None if key[column] is None else str(key[column]) for column in _COLUMNS]
        arguments = parse(*texts[1:])
        cost = None if arguments is None else cost_of(texts[0] or "", arguments)
        if cost is None or cost.kind in _NO_WORK or arguments is None:
            continue
        counted[rows] = True
        for name, value in (
            ("dense", cost.model_flops),
            ("causal", cost.model_flops_causal),
            ("executed", cost.executed_flops),
        ):
            work[name][rows] = min(value, 2**62)
        if cost.bytes_read is not None and cost.bytes_written is not None:
            work["moved"][rows] = min(cost.bytes_read + cost.bytes_written, 2**62)
            moved_known[rows] = True
        dtype = _dtype(arguments)
        if dtype is not None:
            dtype_of[rows] = dtypes.setdefault(dtype, len(dtypes))
    inside = nearest_marked(tree.order, tree.parent, counted.astype(np.uint8)) >= 0 if count else counted
    counted &= ~inside
    for values in work.values():
        values[~counted] = 0
    return OperatorWork(
        counted=counted, moved_known=moved_known & counted, dtype_of=dtype_of, dtypes=list(dtypes), **work
    )


def _dtype(arguments: list[Argument]) -> str | None:
    """The dtype of the call's first floating tensor."""
    for argument in arguments:
        if isinstance(argument, TensorSpec) and "float" in argument.dtype:
            return argument.dtype
    return None


def with_work(rows: list[Operator], work: OperatorWork, tree: OperatorTree, peak: Accelerator | None) -> list[Operator]:
    """The operators' rows with their FLOPs, bytes, rates and place under the roofline."""
    if not work.counted.any():
        return rows
    count = len(tree.names)
    sums = {name: np.zeros(count, np.int64) for name in ("dense", "causal", "moved", "calls", "sized")}
    chosen = work.counted
    np.add.at(sums["dense"], tree.name_of[chosen], work.dense[chosen])
    np.add.at(sums["causal"], tree.name_of[chosen], work.causal[chosen])
    np.add.at(sums["moved"], tree.name_of[chosen], work.moved[chosen])
    np.add.at(sums["calls"], tree.name_of[chosen], 1)
    np.add.at(sums["sized"], tree.name_of[work.moved_known], 1)
    index = {name: place for place, name in enumerate(tree.names)}
    bound = _fastest_ns(work, tree, peak)
    out = []
    for row in rows:
        place = index[row.name]
        if not sums["calls"][place]:
            out.append(row)
            continue
        changes: dict[str, Any] = {"flops": int(sums["dense"][place]), "flops_causal": int(sums["causal"][place])}
        if sums["sized"][place] == sums["calls"][place]:
            changes["bytes"] = int(sums["moved"][place])
        # rates only where every call of the name is counted: else the time would be of more than the work
        if row.device_ns > 0 and sums["calls"][place] == row.calls:
            if sums["causal"][place]:
                changes["flops_per_s"] = int(sums["causal"][place]) / (row.device_ns / 1e9)
            if bound is not None and np.isfinite(bound[place]):
                changes["roofline"] = float(bound[place]) / row.device_ns
        out.append(_changed(row, changes))
    return out


def _changed(row: Operator, changes: dict[str, Any]) -> Operator:
    return Operator(**{name: changes.get(name, getattr(row, name)) for name in row.__struct_fields__})


def _fastest_ns(work: OperatorWork, tree: OperatorTree, peak: Accelerator | None) -> NDArray[np.float64] | None:
    """Per name the least time that its work could take at the device's peaks; not finite where unknown."""
    if peak is None or peak.memory_bytes_per_s is None:
        return None
    out = np.zeros(len(tree.names))
    rates = np.array(
        [
            peak.peak_flops_per_s(_PRECISION_OF[dtype]) or np.nan if dtype in _PRECISION_OF else np.nan
            for dtype in work.dtypes
        ]
        + [np.nan]
    )
    compute = np.where(work.causal > 0, work.causal / rates[work.dtype_of], 0.0)
    transfer = np.where(work.moved_known, work.moved / peak.memory_bytes_per_s, np.nan)
    least = np.fmax(compute, transfer) * 1e9
    least[np.isnan(compute)] = np.nan
    np.add.at(out, tree.name_of[work.counted], least[work.counted])
    return out


def device_efficiency(
    trace: Trace, device: Device, work: OperatorWork, classified: Classified, peak: Accelerator | None
) -> DeviceEfficiency:
    """One device's rating over its window: MFU, HFU, tensor-core share, and how much of its time is covered."""
    events = trace.device_events
    mine = events["device"].to_numpy() == device.device
    operator = rows_of(events["operator"])
    duration = events["duration_ns"].to_numpy()
    covered = (
        _covered(trace, work)[np.maximum(operator, 0)] & (operator >= 0)
        if len(work.counted)
        else np.zeros(len(operator), np.bool_)
    )
    launched = np.zeros(len(work.counted), np.bool_)
    launched[operator[mine & (operator >= 0)]] = True
    tf32 = _uses_tf32(classified, mine)
    by_dtype = [
        _by_dtype(dtype, number, work, tf32=tf32, peak=peak)
        for number, dtype in enumerate(work.dtypes)
        if work.dense[work.dtype_of == number].any()
    ]
    total = sum(row.flops for row in by_dtype)
    unrated = sum(row.flops for row in by_dtype if row.peak_flops_per_s is None)
    rated = bool(total) and unrated <= _NEGLIGIBLE * total and device.window_ns > 0
    several = len({int(number) for number in events["device"].unique().to_list()}) > 1
    return DeviceEfficiency(
        rank=device.rank,
        device=device.device,
        by_dtype=by_dtype,
        mfu=_utilisation(by_dtype, "flops_causal", device.window_ns) if rated and not several else None,
        hfu=_utilisation(by_dtype, "executed_flops", device.window_ns) if rated and not several else None,
        tensor_core_share=tensor_core_share(classified, duration, mine),
        covered_share=int(duration[mine & covered].sum()) / max(int(duration[mine].sum()), 1),
        peak=None if peak is None else peak.name,
        peak_source=None if peak is None else peak.source,
        unknown_because=_why_unknown(total, rated=rated, several=several, named=device.name, peak=peak),
    )


def _covered(trace: Trace, work: OperatorWork) -> NDArray[np.bool_]:
    """Which operators are counted, or lie in one that is."""
    parent = rows_of(trace.operators["parent"])
    order = trace.host_order[trace.host_order < len(parent)]
    return work.counted | (nearest_marked(order, parent, work.counted.astype(np.uint8)) >= 0)


def _uses_tf32(classified: Classified, mine: NDArray[np.bool_]) -> bool:
    names = {classified.names[code] for code in np.unique(classified.name_of[mine]).tolist()}
    return any(_TF32_NAME.search(name[:512]) for name in names)


def _by_dtype(dtype: str, number: int, work: OperatorWork, *, tf32: bool, peak: Accelerator | None) -> WorkByDtype:
    rows = work.dtype_of == number
    precision = _PRECISION_OF.get(dtype)
    if precision == "fp32" and tf32:
        precision = "tf32"
    return WorkByDtype(
        dtype=dtype,
        precision=precision,
        flops=int(work.dense[rows].sum()),
        flops_causal=int(work.causal[rows].sum()),
        executed_flops=int(work.executed[rows].sum()),
        peak_flops_per_s=None if peak is None or precision is None else peak.peak_flops_per_s(precision),
    )


def _utilisation(rows: list[WorkByDtype], field: str, window_ns: int) -> float:
    """The time that the work would take at each dtype's peak, over the window."""
    seconds: float = sum(getattr(row, field) / row.peak_flops_per_s for row in rows if row.peak_flops_per_s)
    return seconds / (window_ns / 1e9)


def _why_unknown(total: int, *, rated: bool, several: bool, named: str | None, peak: Accelerator | None) -> str | None:
    if not total:
        return "no operator with FLOPs had its shapes recorded (record_shapes=True)"
    if several:
        return "the file holds several devices and the work is not told apart between them"
    if peak is None:
        return f"no peak is known for {named!r}" if named else "the trace does not name the device"
    return None if rated else "the table of accelerators has no peak for a dtype that was used"


@cache
def _tensor_core_rule() -> tuple[frozenset[str], re.Pattern[str], re.Pattern[str]]:
    rule = tomllib.loads((files("whystall.analysis") / "kernel_classes.toml").read_text("utf-8"))["tensor_cores"]
    return (
        frozenset(rule["families"]),
        re.compile(rule["pattern"], re.IGNORECASE),
        re.compile(rule["except"], re.IGNORECASE),
    )


def tensor_core_share(classified: Classified, duration: NDArray[np.int64], mine: NDArray[np.bool_]) -> float | None:
    """Of the time of kernels that could use tensor cores the share that does; ``None`` when there are none."""
    families, pattern, exception = _tensor_core_rule()
    eligible = np.array([family in families for family in classified.families], np.bool_)[classified.family_of] & mine
    whole = int(duration[eligible].sum())
    if not whole:
        return None
    uses = np.array(
        [bool(pattern.search(name[:4096])) and not exception.search(name[:4096]) for name in classified.names]
        or [False],
        np.bool_,
    )
    return int(duration[eligible & uses[classified.name_of]].sum()) / whole


def accelerator_of(trace: Trace, device: Device) -> Accelerator | None:
    """The table's row for a device, by the name and memory that the trace gives."""
    if device.name is None:
        return None
    memory = next(
        (row.memory_bytes for row in trace.metadata.devices if row.name == device.name and row.memory_bytes), None
    )
    return find(device.name, memory_gb=None if memory is None else memory / 1e9)
