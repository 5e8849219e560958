"""Kinds of waits of the host for the device, by the names around the call that waits."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A kind of wait, and the patterns of the names around it; all that are given must match."""

    kind: str
    named: str
    frame: re.Pattern[str] | None
    operator: re.Pattern[str] | None
    copy: re.Pattern[str] | None
    bare: bool
    after: re.Pattern[str] | None
    mark: re.Pattern[str] | None


@cache
def wait_rows() -> tuple[WaitRow, ...]:
    """The table of waits; the first row that matches decides.

    >>> next(row.kind for row in wait_rows() if row.operator and row.operator.search("aten::nonzero"))
    'shapes'
    """
    rows = tomllib.loads((files("whystall.vocabulary") / "waits.toml").read_text("utf-8"))["row"]
    return tuple(
        WaitRow(
            row["kind"],
            row["named"],
            _in(row, "frame"),
            _in(row, "operator"),
            _in(row, "copy"),
            row.get("bare", False),
            _in(row, "after"),
            _in(row, "mark"),
        )
        for row in rows
    )


def _in(row: dict[str, str], key: str) -> re.Pattern[str] | None:
    return re.compile(row[key]) if key in row else None
