"""The roofline: each operator's operations per byte, its rate, and the device's limit.

A point is all calls of one operator in one dtype. Operations are useful FLOPs of products (a causal mask taken off) and
elementwise ones; bytes are those that must be read and written at least. The limit at an intensity of I operations a
byte is ``min(peak, I x bandwidth)`` (Williams, Waterman and Patterson, CACM 52(4), 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from whystall._native import subtree_sums
from whystall.analysis.operators import OperatorTree
from whystall.analysis.results import Device
from whystall.analysis.work import OperatorWork, precision_of
from whystall.analysis.work_results import LeftOut, Roofline, RooflineCeiling, RooflinePoint
from whystall.hardware.accelerators import Accelerator, Precision

_NO_COST: Final = "no operator with a known cost"
_NO_BYTES: Final = "operators whose bytes are not known"
_NO_OPERATIONS: Final = "operators that only move data"
_FUSED: Final = "compiled kernels, whose operations are not recorded"


def roofline(
    device: Device, tree: OperatorTree, work: OperatorWork, peak: Accelerator | None, *, tf32: bool
) -> Roofline | None:
    """The points and ceilings of one device; ``None`` where no operator has a known cost.

    The file must hold this device alone: work is not separated by device. Without ``peak`` there are points and no
    ceilings.
    """
    inclusive = subtree_sums(tree.order, tree.parent, tree.work_ns)
    timed = work.counted & (inclusive > 0)
    operations = work.causal + work.elementwise
    drawn = timed & work.moved_known & (operations > 0) & (work.moved > 0)
    if not timed.any():
        return None
    names, groups = _groups(tree, work, drawn)
    sums = {
        name: _summed(groups, values[drawn], len(names))
        for name, values in (("ns", inclusive), ("operations", operations), ("moved", work.moved))
    }
    calls = np.bincount(groups, minlength=len(names))
    points = [
        _point(
            tree.names[operator],
            work.dtypes[dtype] if dtype >= 0 else None,
            calls=int(calls[place]),
            device_ns=int(sums["ns"][place]),
            operations=int(sums["operations"][place]),
            moved=int(sums["moved"][place]),
            peak=peak,
            tf32=tf32,
        )
        for place, (operator, dtype) in enumerate(names)
    ]
    fused = timed & (work.kind_of == (work.kinds.index("fused") if "fused" in work.kinds else len(work.kinds)))
    moves = timed & work.moved_known & ~drawn & ~fused
    unsized = timed & ~work.moved_known & ~fused
    rest = device.kernel_sum_ns - int(inclusive[timed].sum())
    left_out = [
        LeftOut(reason=reason, device_ns=ns)
        for reason, ns in (
            (_NO_OPERATIONS, int(inclusive[moves].sum())),
            (_FUSED, int(inclusive[fused].sum())),
            (_NO_BYTES, int(inclusive[unsized].sum())),
            (_NO_COST, rest),
        )
        if ns
    ]
    return Roofline(
        memory_bytes_per_s=None if peak is None else peak.memory_bytes_per_s,
        ceilings=_ceilings(points, peak),
        points=sorted(points, key=lambda point: (-point.device_ns, point.operator, point.dtype or "")),
        left_out=left_out,
    )


def _groups(
    tree: OperatorTree, work: OperatorWork, drawn: NDArray[np.bool_]
) -> tuple[list[tuple[int, int]], NDArray[np.intp]]:
    """The distinct pairs of operator and dtype, and each drawn call's place among them."""
    pairs = np.stack([tree.name_of[drawn], work.dtype_of[drawn]], axis=1)
    distinct, groups = np.unique(pairs, axis=0, return_inverse=True)
    return [(int(operator), int(dtype)) for operator, dtype in distinct], groups.reshape(-1)


def _summed(groups: NDArray[np.intp], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    out = np.zeros(count, np.int64)
    np.add.at(out, groups, values)
    return out


def _point(
    operator: str,
    dtype: str | None,
    *,
    calls: int,
    device_ns: int,
    operations: int,
    moved: int,
    peak: Accelerator | None,
    tf32: bool,
) -> RooflinePoint:
    precision = None if dtype is None else precision_of(dtype, tf32=tf32)
    ceiling = None if peak is None or precision is None else peak.peak_flops_per_s(precision)
    bandwidth = None if peak is None else peak.memory_bytes_per_s
    intensity, rate = operations / moved, operations / (device_ns / 1e9)
    attainable = None if ceiling is None or bandwidth is None else min(ceiling, intensity * bandwidth)
    share = None if attainable is None else rate / attainable
    return RooflinePoint(
        operator=operator,
        dtype=dtype,
        precision=precision,
        calls=calls,
        device_ns=device_ns,
        operations=operations,
        bytes=moved,
        intensity=intensity,
        operations_per_s=rate,
        bytes_per_s=moved / (device_ns / 1e9),
        attainable_per_s=attainable,
        share=share,
        headroom_ns=None if share is None else max(device_ns - round(device_ns * share), 0),
        bound=None if attainable is None else "compute" if attainable == ceiling else "memory",
    )


def _ceilings(points: Sequence[RooflinePoint], peak: Accelerator | None) -> list[RooflineCeiling]:
    """The peaks of the precisions that were used, the lowest first."""
    if peak is None:
        return []
    bandwidth = peak.memory_bytes_per_s
    used = sorted({point.precision for point in points if point.precision is not None})
    rates = [(rate, name) for name in used if (rate := peak.peak_flops_per_s(cast("Precision", name))) is not None]
    return [
        RooflineCeiling(precision=name, flops_per_s=rate, ridge=None if bandwidth is None else rate / bandwidth)
        for rate, name in sorted(rates)
    ]
