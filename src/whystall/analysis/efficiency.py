"""Efficiency: the FLOPs and bytes of operators, relative to the device's limits.

Work comes from recorded shapes through the one cost registry; time from the device's events. An operator that contains
another counts for both, so that nothing counts twice. An unknown peak is ``None``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystall._native import subtree_sums
from whystall.analysis.kernel_classes import Classified
from whystall.analysis.operators import OperatorTree
from whystall.analysis.results import Device, Operator, Step
from whystall.analysis.roofline import roofline
from whystall.analysis.steadiness import steady
from whystall.analysis.uncovered import uncovered_work
from whystall.analysis.work import EventWork, OperatorWork, WorkSums, precision_of, sums_by_group, uses_tf32
from whystall.analysis.work_results import DeviceEfficiency, WorkByDtype
from whystall.hardware.accelerators import Accelerator
from whystall.hardware.calibration import Calibration, calibrated
from whystall.hardware.recognition import Traits, recognise
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

# Work of a dtype without a known peak may be left out of the rating only while it is this small.
_NEGLIGIBLE: Final = 0.01
# Where all steps are on average this many times as long as the steady ones, MFU is of the steady ones alone: a step
# that compiles is no step of the job's work. As for slow steps (`whystall.analysis.steadiness`).
_FAR_LONGER: Final = 1.25
_FEWEST_RATED: Final = 3


def with_work(
    rows: list[Operator], work: OperatorWork, tree: OperatorTree, least: NDArray[np.float64] | None
) -> list[Operator]:
    """The operators' rows with their FLOPs, bytes, rates and place under the roofline.

    ``least`` is the least time of each call (`whystall.analysis.work.least_ns`), where peaks are known.
    """
    if not work.counted.any():
        return rows
    chosen = np.flatnonzero(work.counted)
    inclusive = subtree_sums(tree.order, tree.parent, tree.work_ns)[chosen]
    sums = sums_by_group(
        len(tree.names),
        calls=chosen,
        group_of_call=tree.name_of[chosen],
        time_ns=inclusive,
        group_of_time=tree.name_of[chosen],
        owner_of_time=chosen,
        work=work,
        least=least,
    )
    sized = np.bincount(tree.name_of[work.moved_known], minlength=len(tree.names))
    index = {name: place for place, name in enumerate(tree.names)}
    return [_with_work(row, sums, int(sized[index[row.name]]), index[row.name]) for row in rows]


def _with_work(row: Operator, sums: WorkSums, sized: int, place: int) -> Operator:
    calls = int(sums.calls[place])
    if not calls:
        return row
    changes: dict[str, Any] = {"flops": int(sums.dense[place]), "flops_causal": int(sums.causal[place])}
    if sized == calls:
        changes["bytes"] = int(sums.moved[place])
    # rates only where every call of the name is counted: else the time would cover more than the work
    if row.device_ns > 0 and calls == row.calls:
        rated = sums.row(place)
        changes |= {"flops_per_s": rated.flops_per_s, "roofline": rated.roofline}
        changes["bytes_per_s"] = rated.bytes_per_s if sized == calls else None
    return msgspec.structs.replace(row, **changes)


def kernel_work(
    trace: Trace,
    events: EventWork,
    group_of: NDArray[Any],
    groups: int,
    work: OperatorWork,
    least: NDArray[np.float64] | None,
) -> WorkSums:
    """The work of device events by group (a name, a family); a call's work belongs to its main event."""
    calls = events.owner[events.main]
    return sums_by_group(
        groups,
        calls=calls,
        group_of_call=group_of[events.main],
        time_ns=trace.device_events["duration_ns"].to_numpy(),
        group_of_time=group_of,
        owner_of_time=events.owner,
        work=work,
        least=least,
    )


def device_efficiency(
    trace: Trace,
    device: Device,
    tree: OperatorTree,
    work: OperatorWork,
    owner: EventWork,
    classified: Classified,
    peak: Accelerator | None,
) -> DeviceEfficiency:
    """One device's rating over its window: MFU, HFU, tensor-core share, and how much of its time is covered."""
    events = trace.device_events
    mine = events["device"].to_numpy() == device.device
    duration = events["duration_ns"].to_numpy()
    tf32 = uses_tf32(classified)
    # Operators that launched nothing, such as those of a graph that is captured, did no work on the device.
    ran = np.zeros(len(work.dense), np.bool_)
    ran[owner.owner[mine & (owner.owner >= 0)]] = True
    by_dtype = _all_by_dtype(ran, work, tf32=tf32, peak=peak)
    total = sum(row.flops for row in by_dtype)
    unrated = sum(row.flops for row in by_dtype if row.peak_flops_per_s is None)
    rated = bool(total) and unrated <= _NEGLIGIBLE * total and device.window_ns > 0
    usual = _usual_steps(device)
    rows, window_ns = by_dtype, device.window_ns
    if usual:
        names = {step.name for step in usual}
        numbers = trace.steps["name"].cast(str).is_in(names).to_numpy().nonzero()[0]
        in_usual = np.zeros(len(work.dense), np.bool_)
        in_usual[owner.owner[mine & (owner.owner >= 0) & np.isin(rows_of(events["step"]), numbers)]] = True
        rows = _all_by_dtype(in_usual, work, tf32=tf32, peak=peak)
        window_ns = sum(step.window_ns for step in usual)
    several = len({int(number) for number in events["device"].unique().to_list()}) > 1
    return DeviceEfficiency(
        rank=device.rank,
        device=device.device,
        by_dtype=by_dtype,
        mfu=_utilisation(rows, "flops_causal", window_ns) if rated and not several else None,
        hfu=_utilisation(rows, "executed_flops", window_ns) if rated and not several else None,
        tensor_core_share=tensor_core_share(classified, duration, mine),
        covered_share=int(duration[mine & (owner.owner >= 0)].sum()) / max(int(duration[mine].sum()), 1),
        peak=None if peak is None else peak.name,
        peak_source=None if peak is None else peak.source,
        measured=None if peak is None else peak.measured,
        tensor_core_flops_share=_tensor_core_flops_share(classified, work, owner, mine),
        uncovered=uncovered_work(trace, device, tree, owner, classified),
        unknown_because=_why_unknown(total, rated=rated, several=several, named=device.name, peak=peak),
        rated_steps=len(usual) or None,
        roofline=None if several else roofline(device, tree, work, peak, tf32=tf32),
    )


def _usual_steps(device: Device) -> Sequence[Step]:
    """The steady steps of a device whose other steps make the mean far longer; none where they do not."""
    chosen = steady(device.steps)
    if len(chosen) < _FEWEST_RATED or len(chosen) == len(device.steps):
        return ()
    usual = sum(step.window_ns for step in chosen) / len(chosen)
    whole = sum(step.window_ns for step in device.steps) / len(device.steps)
    return chosen if whole > _FAR_LONGER * usual else ()


def _all_by_dtype(
    ran: NDArray[np.bool_], work: OperatorWork, *, tf32: bool, peak: Accelerator | None
) -> list[WorkByDtype]:
    return [
        _by_dtype(dtype, ran & (work.dtype_of == number), work, tf32=tf32, peak=peak)
        for number, dtype in enumerate(work.dtypes)
        if work.dense[ran & (work.dtype_of == number)].any()
    ]


def _by_dtype(
    dtype: str, rows: NDArray[np.bool_], work: OperatorWork, *, tf32: bool, peak: Accelerator | None
) -> WorkByDtype:
    precision = precision_of(dtype, tf32=tf32)
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
        return "the file holds several devices and does not say which of them did which work"
    if peak is None:
        return f"no peak is known for {named!r}" if named else "the trace does not name the device"
    return None if rated else "the table of accelerators has no peak for a dtype that was used"


def tensor_core_share(classified: Classified, duration: NDArray[np.int64], mine: NDArray[np.bool_]) -> float | None:
    """Share of tensor-core time among kernels that could use tensor cores; ``None`` when there are none."""
    could, uses = tensor_core_use(classified)
    eligible = could & mine
    whole = int(duration[eligible].sum())
    return int(duration[eligible & uses].sum()) / whole if whole else None


def _tensor_core_flops_share(
    classified: Classified, work: OperatorWork, owner: EventWork, mine: NDArray[np.bool_]
) -> float | None:
    """Share of FLOPs done on tensor cores, among those with known kernels; ``None`` where there are none."""
    _, uses = tensor_core_use(classified)
    flops = np.zeros(len(mine), np.int64)
    chosen = owner.main & mine
    flops[chosen] = work.dense[owner.owner[chosen]]
    whole = int(flops.sum())
    return int(flops[uses].sum()) / whole if whole else None


def tensor_core_use(classified: Classified) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Per device event whether its kernel could use tensor cores, and whether its name shows that it does."""
    return classified.could_have("tensor-cores"), classified.has("tensor-cores")


def accelerator_of(trace: Trace, device: Device, calibrations: Sequence[Calibration] = ()) -> Accelerator | None:
    """The table's row for a device, by its recorded name, capability, units and memory.

    ``calibrations`` fill its gaps.
    """
    told = trace.metadata.device_properties(device.device)
    traits = (
        Traits()
        if told is None
        else Traits(capability=told.compute_capability, units=told.multiprocessors, memory_bytes=told.memory_bytes)
    )
    row = recognise(device.name, traits)
    return row if device.name is None else calibrated(device.name, row, calibrations)
