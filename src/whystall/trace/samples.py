"""Reads the samples of a watched run: one row per step, and what was seen of the machine now and then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from whystall.trace.errors import InputError

SCHEMA: Final = "whystall.samples/1"
SUFFIX: Final = ".samples.jsonl"
_LONGEST_LINE: Final = 1 << 16
_MOST_COLUMNS: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class RunSamples:
    """The samples of one rank. ``steps`` has the file's own columns (``capture/samples.py`` names them)."""

    name: str
    rank: int
    began_unix_ns: int
    steps: pl.DataFrame
    machine: pl.DataFrame
    damaged_lines: int


def read_samples(path: Path) -> RunSamples:
    """The samples in a file; lines that cannot be read are counted and left out.

    Raises `InputError` when the file cannot be opened or is none of samples.
    """
    rows: list[list[int]] = []
    machine: list[dict[str, Any]] = []
    head: dict[str, Any] | None = None
    damaged = 0
    try:
        with path.open("rb") as file:
            for line in file:
                value = _value(line)
                if head is None:
                    head = _head(value, path)
                elif isinstance(value, list) and len(value) == len(head["columns"]):
                    rows.append(value)
                elif isinstance(value, dict):
                    machine.append({"at_unix_ns": value.get("at_unix_ns"), "rss_kib": value.get("rss_kib")})
                else:
                    damaged += 1
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if head is None:
        raise InputError(f"{path.name} is empty")
    steps = pl.DataFrame(rows, schema=dict.fromkeys(head["columns"], pl.Int64), orient="row", strict=False)
    frame = pl.DataFrame(machine, schema={"at_unix_ns": pl.Int64, "rss_kib": pl.Int64}, strict=False)
    return RunSamples(path.name, head["rank"], head.get("began_unix_ns", 0), steps, frame, damaged)


def _value(line: bytes) -> Any:
    if len(line) > _LONGEST_LINE:
        return None
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None


def _head(value: Any, path: Path) -> dict[str, Any]:
    columns = value.get("columns") if isinstance(value, dict) else None
    known = isinstance(value, dict) and value.get("schema") == SCHEMA and isinstance(value.get("rank"), int)
    if not known or not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
        raise InputError(f"{path.name} holds no samples of whystall")
    if (
        not {"step", "duration_us", "flags"} <= set(columns)
        or len(set(columns)) != len(columns)
        or len(columns) > _MOST_COLUMNS
    ):
        raise InputError(f"{path.name} holds samples with columns that are not known")
    return dict(value)
