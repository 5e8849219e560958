"""Measurements of ``whystall probe`` on a device, kept in the user's cache folder, and their use for gaps of the table.

A measurement belongs to one device model on one machine. It never replaces a peak of the table: it stands in where the
table has none, and is named wherever the number is used. A file that cannot be read, or that another version wrote, is
ignored with a sentence.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from whystall.disk.owned import is_own_file, make_private
from whystall.disk.reading import content
from whystall.disk.writing import Over, write
from whystall.hardware.accelerators import PARTITION, PRECISIONS, Accelerator
from whystall.json_text import parse_json

SCHEMA: Final = "whystall.calibration/1"
FOLDER: Final = "calibration"
_LARGEST_FILE: Final = 1 << 20

Rate = Annotated[float, msgspec.Meta(gt=0, lt=1e30)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0)]


class Matmul(msgspec.Struct, frozen=True, kw_only=True):
    """One matrix product, (m x k) by (k x n): the fastest and the median repeat, the rate of the fastest."""

    precision: str
    m: int
    n: int
    k: int
    repeats: int
    best_ns: Nanoseconds
    median_ns: Nanoseconds
    flops_per_s: Rate


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy within the device's memory: each byte is read and written. The rate is the fastest repeat's."""

    bytes: int
    repeats: int
    best_ns: Nanoseconds
    median_ns: Nanoseconds
    bytes_per_s: Rate


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest operator: the host's time for it, and the device's rate for many."""

    calls: int
    host_ns: Nanoseconds
    device_ns: Nanoseconds | None


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The rate between ranks of one machine, on the bus: the largest message of a collective."""

    collective: str
    ranks: int
    bytes: int
    best_ns: Nanoseconds
    bus_bytes_per_s: Rate


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured of one device; ``measured_on`` is a date (ISO 8601), ``machine`` a name for this computer."""

    schema: Literal["whystall.calibration/1"] = SCHEMA
    machine: str
    device: str
    kind: Literal["cpu", "gpu"]
    measured_on: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    torch: str
    threads: int | None = None
    matmul: list[Matmul] = []
    copy: list[Copy] = []
    launch: Launch | None = None
    links: list[Link] = []

    def flops_per_s(self, precision: str) -> float | None:
        """The best rate that was measured in ``precision``."""
        return max((one.flops_per_s for one in self.matmul if one.precision == precision), default=None)

    @property
    def bytes_per_s(self) -> float | None:
        """The rate of the largest copy, which no cache holds."""
        largest = max(self.copy, key=lambda one: one.bytes, default=None)
        return None if largest is None else largest.bytes_per_s

    @property
    def link_bytes_per_s(self) -> float | None:
        """The best rate on the bus of any collective."""
        return max((one.bus_bytes_per_s for one in self.links), default=None)

    def merged(self, other: Calibration) -> Calibration:
        """This measurement, completed by ``other``, an earlier one of the same device, under the earlier date."""
        kept = {name: getattr(other, name) for name in ("matmul", "copy", "launch", "links") if not getattr(self, name)}
        kept = {name: value for name, value in kept.items() if value}
        older = min(self.measured_on, other.measured_on) if kept else self.measured_on
        return msgspec.structs.replace(self, measured_on=older, **kept)


def calibration_folder(cache: Path) -> Path:
    """Where calibrations are kept in whystall's cache folder."""
    return cache / FOLDER


def read_calibrations(folder: Path) -> tuple[list[Calibration], list[str]]:
    """The calibrations in ``folder``, and a sentence per file that is ignored."""
    found, problems = [], []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            found.append(_read(path))
        except (OSError, ValueError) as error:
            problems.append(
                f"the calibration {path.name} is ignored: {str(error)[:200]} (`whystall probe` writes a new one)"
            )
    return found, problems


def _read(path: Path) -> Calibration:
    if not is_own_file(path):
        raise ValueError("it is a link, or another user's")
    return parse_json(content(path, _LARGEST_FILE), type=Calibration)


def write_calibration(calibration: Calibration, folder: Path) -> Path:
    """Keeps ``calibration``, completed by an earlier one of this device."""
    make_private(folder, below=folder.parent)
    path = folder / _file_name(calibration)
    with contextlib.suppress(OSError, ValueError):
        calibration = calibration.merged(_read(path))
    text = msgspec.json.format(msgspec.json.encode(calibration), indent=1) + b"\n"
    write(path, lambda stream: stream.write(text), over=Over.OUR_OWN)
    return path


def _file_name(calibration: Calibration) -> str:
    """A name per machine and device that is readable, and different for names that read alike."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", calibration.device).strip("-").lower()[:60]
    digest = hashlib.sha256(f"{calibration.machine}\n{calibration.device}".encode()).hexdigest()[:8]
    return f"{readable or 'device'}-{digest}.json"


def calibrated(name: str, row: Accelerator | None, calibrations: Iterable[Calibration]) -> Accelerator | None:
    """The table's ``row`` for the device called ``name`` with its gaps filled by measurements, which it then names.

    Without a row everything is measured. The latest of several measurements counts. A measured rate is that of a matrix
    product, not the device's limit.
    """
    own = [one for one in calibrations if one.device == name and one.kind == "gpu"]
    if not own or PARTITION.search(name):
        return row
    latest = max(own, key=lambda one: one.measured_on)
    base = row or _unknown(name)
    filled: dict[str, float] = {}
    for precision in PRECISIONS:
        rate = latest.flops_per_s(precision)
        if rate is not None and base.peak_flops_per_s(precision) is None:
            filled[f"{precision}_tflops"] = rate / 1e12
    if base.memory_gb_per_s is None and latest.bytes_per_s is not None:
        filled["memory_gb_per_s"] = latest.bytes_per_s / 1e9
    if base.link_gb_per_s is None and latest.link_bytes_per_s is not None:
        filled["link_gb_per_s"] = latest.link_bytes_per_s / 1e9
    if not filled:
        return row
    words = {"memory_gb_per_s": "memory bandwidth", "link_gb_per_s": "link"}
    what = [words.get(name, name.removesuffix("_tflops")) for name in filled]
    measured = f"{', '.join(what)}: measured here on {latest.measured_on} by whystall probe"
    source = measured if row is None else f"{base.source}; {measured}"
    changes: dict[str, object] = {**filled, "source": source, "measured": measured}
    return replace(base, **changes)  # type: ignore[arg-type]


def _unknown(name: str) -> Accelerator:
    """A row that knows nothing but a name."""
    return Accelerator(
        name=name, device_name_regex="", vendor="", fp32_tflops=None, tf32_tflops=None, fp16_tflops=None,
        bf16_tflops=None,
        fp8_tflops=None, fp4_tflops=None, memory_gb_per_s=None, memory_gb=(), link_gb_per_s=None, compute_units=None,
        capability=None,
        bf16_achievable_tflops=None, confidence="low", source="", notes=None,
    )  # fmt: skip
