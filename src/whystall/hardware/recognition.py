"""Identifies an accelerator by its name, else by its capability, units and memory.

A driver may have many names for one part ("Tesla V100-DGXS-32GB", "NVIDIA A100-PG509-200"), the name of a whole family
("AMD Radeon Graphics") or none. Its performance does not depend on the name: it shares its capability, its number of
units and its memory with parts in the table, or it is another part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from whystall.hardware.accelerators import PARTITION, Accelerator, find, table

# Memory that a driver shows over the nominal size, in GiB: ECC and the firmware keep the rest.
_LEAST_SHOWN: Final = 0.9
_MOST_SHOWN: Final = 1.02
# Parts that nothing else separates agree in a number if it differs by at most this: clocks of boards and coolers.
_ALIKE: Final = 0.15
# NVIDIA's GeForce parts do matrix products with single-precision accumulation at half the rate of others (whitepapers
# of GA102 and Ada: RTX 4090 165.2 and 330.3 TFLOP/s).
_AMDS: Final = re.compile(r"\bAMD\b|Instinct|Radeon|\bMI\d", re.IGNORECASE)
_GEFORCE: Final = re.compile(r"GeForce|TITAN", re.IGNORECASE)
_GEFORCE_ROW: Final = re.compile(r"RTX \d{4}( Ti| Super)?$", re.IGNORECASE)
_VIRTUAL: Final = re.compile(r"^GRID |vGPU|-\d+[ABCQ]$")
_WITH_SINGLE_ACCUMULATION: Final = 0.5
_RATES: Final = tuple(
    field.name
    for field in fields(Accelerator)
    if field.name.endswith("_tflops") or field.name in {"memory_gb_per_s", "link_gb_per_s"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """A device's traits besides its name; ``None`` for unknown ones."""

    capability: tuple[int, int] | None = None
    units: int | None = None
    memory_bytes: int | None = None

    def __str__(self) -> str:
        major, minor = self.capability or (0, 0)
        return f"capability {major}.{minor}, {self.units} units and {(self.memory_bytes or 0) / 2**30:.0f} GiB"


def recognise(name: str | None, traits: Traits) -> Accelerator | None:
    """The row of a device's name; for an unknown name, the common values of all parts with the device's traits.

    If these parts nearly agree in a number the highest counts, so that a rating is at least the stated one. A row that
    the number of units contradicts is another part, or the device is a partition of it. The peaks of a part without a
    matching row follow from its architecture and its number of units, at the clock of a part that is listed; its
    bandwidth stays unknown.

    >>> recognise("NVIDIA A100-PG509-200", Traits(capability=(8, 0), units=108, memory_bytes=42_297_524_224)).name
    'A100 SXM 40GB or A100 PCIe 40GB'
    >>> of = Traits(capability=(8, 0), units=14, memory_bytes=5_000_000_000)  # a partition: 312 * 14 / 108
    >>> round(recognise("NVIDIA A100-SXM4-40GB", of).bf16_tflops, 1)
    40.4
    """
    memory_gb = None if traits.memory_bytes is None else traits.memory_bytes / 1e9
    row = find(name, memory_gb=memory_gb) if name else None
    if row is not None:
        return row if traits.units is None or row.compute_units in (None, traits.units) else None
    if (name and (PARTITION.search(name) or _VIRTUAL.search(name))) or None in (traits.capability, traits.units):
        return None
    alike = [row for row in table() if traits.memory_bytes is not None and _has(row, traits)]
    # A row without units may be such a part as well; at least one row must have these units.
    if any(row.compute_units == traits.units for row in alike):
        return _agreed(alike, name, traits)
    return _derived(name, traits)


def _has(row: Accelerator, traits: Traits) -> bool:
    shown = (traits.memory_bytes or 0) / 2**30
    return (
        row.capability == traits.capability
        and row.compute_units in (None, traits.units)
        and any(_LEAST_SHOWN * size <= shown <= _MOST_SHOWN * size for size in row.memory_gb)
    )


def _agreed(rows: Sequence[Accelerator], name: str | None, traits: Traits) -> Accelerator:
    """One row with the numbers that all of these agree on."""
    named = " or ".join(row.name for row in rows)
    how = f"known by {traits}" + (f", since no row knows the name {name[:80]!r}" if name else "")
    changes: dict[str, Any] = {rate: _common([getattr(row, rate) for row in rows]) for rate in _RATES}
    sources = dict.fromkeys(row.source for row in rows)
    return replace(
        rows[0],
        **changes,
        name=named,
        compute_units=traits.units,
        confidence="low" if len(rows) > 1 else "medium",
        source=f"{how}; {'; '.join(sources)}",
        notes=how,
    )


def _derived(name: str | None, traits: Traits) -> Accelerator | None:
    """The peaks of a named part if each unit does the work of a listed part's unit, at that part's clock."""
    if name is None or traits.units is None:
        return None
    is_amds = bool(_AMDS.search(name))  # architectures of two vendors have one number
    rows = [
        row
        for row in table()
        if row.capability == traits.capability
        and row.compute_units
        and row.fp32_tflops
        and (row.vendor == "AMD") == is_amds
    ]
    named = find(name)  # a variant with another memory; the units of some parts do less than their architecture's
    rows = [row for row in rows if named is None or row is named]
    if not rows:
        return None
    is_geforce = bool(_GEFORCE.search(name))
    same = [row for row in rows if bool(_GEFORCE_ROW.match(row.name)) == is_geforce]
    row = min(same or rows, key=lambda one: (one.fp32_tflops or 0.0) / (one.compute_units or 1))
    share = traits.units / (row.compute_units or 1)
    halved = _WITH_SINGLE_ACCUMULATION if is_geforce and not same else 1.0
    rates: dict[str, Any] = {}
    for rate in _RATES:
        known = getattr(row, rate) if rate.endswith("_tflops") and rate != "bf16_achievable_tflops" else None
        rates[rate] = None if known is None else known * share * (1.0 if rate == "fp32_tflops" else halved)
    how = (
        f"derived: {traits.units} units of architecture {traits.capability[0]}.{traits.capability[1]}, "  # type: ignore[index]
        f"each as fast as the {row.name}'s"
    )
    return replace(
        row,
        **rates,
        name=f"{name[:80]} ({how})",
        memory_gb=(),
        compute_units=traits.units,
        confidence="low",
        source=f"{how}; {row.source}",
        notes="its clock may differ, and its memory's bandwidth is not known",
        measured=None,
    )


def _common(values: Sequence[float | None]) -> float | None:
    """The highest of values that nearly agree; ``None`` where one is not known or they do not."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return max(known) if max(known) <= min(known) * (1 + _ALIKE) else None
