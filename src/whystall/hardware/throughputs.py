"""Published throughputs that a job can be held against, each with its source."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, cast

TABLE = "throughputs.csv"
Unit = Literal["tokens", "samples"]


@dataclass(frozen=True, slots=True)
class Reference:
    """Tokens or samples that one device works through in a second, and the source."""

    per_device_per_s: float
    unit: Unit
    source: str


@cache
def references() -> dict[str, Reference]:
    """The published references by name.

    >>> references()["bert-large-a100"].unit
    'samples'
    """
    text = files("whystall.hardware").joinpath(TABLE).read_text(encoding="utf-8")
    return {
        row["name"]: Reference(
            float(row["per_device_per_s"]),
            cast("Unit", row["unit"]),
            f"{row['name']}, {row['device']}: {row['source']}",
        )
        for row in csv.DictReader(text.splitlines())
    }
