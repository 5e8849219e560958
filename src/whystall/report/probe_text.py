"""A calibration as text: products, copies and launches, beside what the table of accelerators says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystall.hardware.accelerators import PRECISIONS, Accelerator
from whystall.hardware.calibration import Calibration
from whystall.report.format import UNKNOWN, duration, rate, share, size


def render_calibration(
    calibration: Calibration, row: Accelerator | None, skipped: Sequence[tuple[str, str]] = ()
) -> str:
    """The measurements as text; ``row`` is the table's for this device, ``skipped`` types with their reasons."""
    threads = "" if calibration.threads is None else f", {calibration.threads} threads"
    head = f"{calibration.device}, measured on {calibration.measured_on} with PyTorch {calibration.torch}{threads}"
    parts = [head, *_sections(calibration, row)]
    if skipped:
        parts.append("\n".join(f"{precision} was not measured: {why}" for precision, why in skipped))
    return "\n\n".join(parts) + "\n"


def _sections(calibration: Calibration, row: Accelerator | None) -> Iterator[str]:
    if calibration.matmul:
        lines = [["type", "product", "best", "median", "reached", "of the peak"]]
        for one in calibration.matmul:
            shape = f"({one.m} x {one.k}) ({one.k} x {one.n})"
            reached = rate(one.flops_per_s, "FLOP/s")
            part = _part(one.flops_per_s, _peak(row, one.precision))
            lines.append([one.precision, shape, duration(one.best_ns), duration(one.median_ns), reached, part])
        yield columns(lines)
    if calibration.copy:
        lines = [["copy", "best", "median", "read and written", "of the peak"]]
        bandwidth = None if row is None else row.memory_bytes_per_s
        for copy in calibration.copy:
            moved = rate(copy.bytes_per_s, "B/s")
            part = _part(copy.bytes_per_s, bandwidth)
            lines.append([size(copy.bytes), duration(copy.best_ns), duration(copy.median_ns), moved, part])
        yield columns(lines)
    if calibration.launch is not None:
        told = f"smallest operator: {duration(calibration.launch.host_ns)} of the host"
        if calibration.launch.device_ns is not None:
            told += f", one every {duration(calibration.launch.device_ns)} on the device"
        yield told


def _peak(row: Accelerator | None, precision: str) -> float | None:
    known = next((one for one in PRECISIONS if one == precision), None)
    return None if row is None or known is None else row.peak_flops_per_s(known)


def _part(value: float, whole: float | None) -> str:
    return UNKNOWN if whole is None else share(value / whole)


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first to the left and the others to the right; one in which nothing is known is left out."""
    known = [place for place in range(len(lines[0])) if any(line[place] != UNKNOWN for line in lines[1:])]
    widths = [max(len(line[place]) for line in lines) for place in known]
    rows = (
        "  ".join(
            line[place].ljust(width) if index == 0 else line[place].rjust(width)
            for index, (place, width) in enumerate(zip(known, widths, strict=True))
        ).rstrip()
        for line in lines
    )
    return "\n".join(rows)
