"""Peaks of accelerators, by the device name that a trace or a driver gives.

``accelerators.csv`` holds one row per model with the source of its numbers. A cell without a source is ``None``: an
unknown peak is never guessed, and an unknown name finds nothing. ``capability`` is that of CUDA and ROCm (CUDA's list
of compute capabilities; for AMD the version of the instruction set, gfx942 as 9.4). ``recognition.py`` uses it where
the name is not enough.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Iterator

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
Confidence = Literal["high", "medium", "low", "conflict"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

TABLE = "accelerators.csv"

_FASTER = 1.1
"""Times the peak of single precision from which on another counts as faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One row of the table: dense peaks of one device as the framework sees it; ``None`` without a source.

    Rates are decimal TFLOP/s and GB/s, as their sources print them. ``memory_gb`` lists every variant that was sold
    under the name. ``bf16_achievable_tflops`` is the best matrix multiplication that was measured (MAMF). ``measured``
    names the numbers that were measured on such a device instead, and when.
    """

    name: str
    device_name_regex: str
    vendor: str
    fp32_tflops: float | None
    tf32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    fp4_tflops: float | None
    memory_gb_per_s: float | None
    memory_gb: tuple[float, ...]
    link_gb_per_s: float | None
    compute_units: int | None
    capability: tuple[int, int] | None
    bf16_achievable_tflops: float | None
    confidence: Confidence
    source: str
    notes: str | None
    measured: str | None = None

    def peak_flops_per_s(self, precision: Precision) -> float | None:
        """The dense peak of ``precision`` in FLOP/s, ``None`` without a source.

        >>> find("NVIDIA H100 80GB HBM3").peak_flops_per_s("bf16")
        989000000000000.0
        """
        tflops = cast("float | None", getattr(self, f"{precision}_tflops"))
        return None if tflops is None else tflops * 1e12

    @property
    def half_tflops(self) -> float | None:
        """The peak in 16 bits: that of bfloat16, which needs no scaling, else that of float16.

        >>> [row.half_tflops for row in table() if row.name in ("T4", "A100 SXM 80GB")]
        [65.0, 312.0]
        """
        return self.bf16_tflops or self.fp16_tflops

    @property
    def has_faster_tf32(self) -> bool:
        """Whether TF32 is faster than single precision; GeForce RTX 30 and 40 reach the same peak by both.

        >>> [row.has_faster_tf32 for row in table() if row.name in ("A100 SXM 80GB", "RTX 3090", "V100 SXM2")]
        [False, True, False]
        """
        return bool(self.tf32_tflops and self.fp32_tflops and self.tf32_tflops > _FASTER * self.fp32_tflops)

    def why_no_peak(self, precision: Precision) -> str | None:
        """Why there is no peak in ``precision``; ``None`` where there is one.

        >>> find("NVIDIA A100-SXM4-80GB").why_no_peak("fp8")
        'the table of accelerators has no fp8 peak for A100 SXM 80GB'
        """
        if self.peak_flops_per_s(precision) is not None:
            return None
        return f"the table of accelerators has no {precision} peak for {self.name}"

    @property
    def memory_bytes_per_s(self) -> float | None:
        """The peak memory bandwidth in bytes per second."""
        return None if self.memory_gb_per_s is None else self.memory_gb_per_s * 1e9


def find(name: str, *, memory_gb: float | None = None) -> Accelerator | None:
    """The row for the device called ``name``, or ``None``.

    The most specific row wins: the one whose pattern covers most of the name. ``memory_gb``, where the caller knows
    it, rules out rows of another size, for a name that was sold in several. A partition of a device (MIG) finds
    nothing: it has a fraction of the peaks. Names as people write them find a row that is called so.

    >>> find("NVIDIA L40S").name, find("L40S").name, find("h100 sxm").name
    ('L40S', 'L40S', 'H100 SXM')
    >>> find("AMD Radeon Graphics") is None
    True
    """
    if PARTITION.search(name):
        return None
    rows = [row for row in table() if _may_have(row, memory_gb)]
    for written in (name.strip(), f"NVIDIA {name.strip()}"):
        matches = [(match[0], row) for row in rows if (match := re.search(row.device_name_regex, written))]
        if matches:
            return max(matches, key=lambda pair: len(pair[0]))[1]
    return next((row for row in rows if row.name.lower() == name.strip().lower()), None)


def alike(name: str) -> list[str]:
    """The names of rows that have all words of a name.

    >>> alike("H100")
    ['H100 SXM', 'H100 PCIe', 'H100 NVL']
    """
    words = set(name.lower().replace("-", " ").split())
    return [row.name for row in table() if words and words <= set(row.name.lower().split())]


PARTITION = re.compile(r"\bMIG\b")

# Drivers report usable GiB, data sheets sell GB, and GiB read as GB is 7 % less: "80 GB" shows as 79.1 or 85.
MEMORY_TOLERANCE = 0.12


def _may_have(row: Accelerator, memory_gb: float | None) -> bool:
    if memory_gb is None or not row.memory_gb:
        return True
    return any(abs(memory_gb - size) <= MEMORY_TOLERANCE * size for size in row.memory_gb)


@cache
def table() -> tuple[Accelerator, ...]:
    """Every row of the table, in its order."""
    text = files("whystall.hardware").joinpath(TABLE).read_text(encoding="utf-8")
    return tuple(_rows(text))


def _rows(text: str) -> Iterator[Accelerator]:
    for cells in csv.DictReader(text.splitlines()):
        devices = int(cells["devices_per_package"])  # sources print numbers of the package
        units = _share(cells["sm_or_cu"], devices)
        yield Accelerator(
            name=cells["name"],
            device_name_regex=cells["device_name_regex"],
            vendor=cells["vendor"],
            fp32_tflops=_share(cells["fp32_tflops"], devices),
            tf32_tflops=_share(cells["tf32_tflops"], devices),
            fp16_tflops=_share(cells["fp16_tflops"], devices),
            bf16_tflops=_share(cells["bf16_tflops"], devices),
            fp8_tflops=_share(cells["fp8_tflops"], devices),
            fp4_tflops=_share(cells["fp4_tflops"], devices),
            memory_gb_per_s=_share(cells["hbm_gb_s"], devices),
            memory_gb=tuple(float(size) / devices for size in cells["mem_gb"].split("/") if size),
            link_gb_per_s=_share(cells["link_uni_gb_s"], devices),
            compute_units=None if units is None else int(units),
            capability=_version(cells["capability"]),
            bf16_achievable_tflops=_share(cells["mamf_bf16_tflops"], devices),
            confidence=cast("Confidence", cells["confidence"].lower()),
            source=cells["source"],
            notes=cells["notes"] or None,
        )


def _share(cell: str, devices: int) -> float | None:
    return float(cell) / devices if cell else None


def _version(cell: str) -> tuple[int, int] | None:
    major, _, minor = cell.partition(".")
    return (int(major), int(minor)) if cell else None
