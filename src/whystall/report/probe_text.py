"""A calibration in words: products, copies and launches, beside the ratings in the table of accelerators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystall.hardware.accelerators import PRECISIONS, Accelerator
from whystall.hardware.calibration import Calibration
from whystall.report import tables
from whystall.report.document import Document, Lines, Part, grid
from whystall.report.format import duration
from whystall.report.tables import Cell


def calibration_document(
    calibration: Calibration, row: Accelerator | None, skipped: Sequence[tuple[str, str]] = ()
) -> Document:
    """The measurements; ``row`` is the table's for this device, ``skipped`` types with their reasons."""
    threads = "" if calibration.threads is None else f", {calibration.threads} threads"
    head = f"{calibration.device}, measured on {calibration.measured_on} with PyTorch {calibration.torch}{threads}"
    parts: list[Part] = [head, *_sections(calibration, row)]
    if skipped:
        parts.append(Lines(tuple(f"{precision} was not measured: {why}" for precision, why in skipped)))
    return Document("probe", head, tuple(parts))


def _sections(calibration: Calibration, row: Accelerator | None) -> Iterator[Part]:
    if calibration.matmul:
        yield grid(
            "Matrix products",
            ("type", "product", "best", "median", "reached", "of the peak"),
            (
                (
                    one.precision,
                    f"({one.m} x {one.k}) ({one.k} x {one.n})",
                    tables.duration(one.best_ns),
                    tables.duration(one.median_ns),
                    tables.rate(one.flops_per_s, "FLOP/s"),
                    _part(one.flops_per_s, _peak(row, one.precision)),
                )
                for one in calibration.matmul
            ),
        )
    if calibration.copy:
        bandwidth = None if row is None else row.memory_bytes_per_s
        yield grid(
            "Copies of tensors",
            ("copy", "best", "median", "read and written", "of the peak"),
            (
                (
                    tables.size(copy.bytes),
                    tables.duration(copy.best_ns),
                    tables.duration(copy.median_ns),
                    tables.rate(copy.bytes_per_s, "B/s"),
                    _part(copy.bytes_per_s, bandwidth),
                )
                for copy in calibration.copy
            ),
        )
    if calibration.launch is not None:
        told = f"smallest operator: {duration(calibration.launch.host_ns)} of the host"
        if calibration.launch.device_ns is not None:
            told += f", one every {duration(calibration.launch.device_ns)} on the device"
        yield told


def _peak(row: Accelerator | None, precision: str) -> float | None:
    known = next((one for one in PRECISIONS if one == precision), None)
    return None if row is None or known is None else row.peak_flops_per_s(known)


def _part(value: float, whole: float | None) -> Cell:
    return tables.share(None if whole is None else value / whole)
