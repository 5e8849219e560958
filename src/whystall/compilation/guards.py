"""The kind of a guard that failed, and the edit that avoids the recompile."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["GuardKind", "guard_kind", "guard_shape"]

_NUMBERS: Final = re.compile(r"((?:==|!=|<=|>=|<|>|expected|actual)\s*)-?\d[\d.]*(?:e[+-]?\d+)?")
_LEADING: Final = re.compile(r"^-?\d+(?= (?:<|<=) )")


@dataclass(frozen=True, slots=True)
class GuardKind:
    """A row of the table of guards."""

    kind: str
    pattern: re.Pattern[str]
    is_value: bool
    edit: str


@cache
def guard_kinds() -> tuple[GuardKind, ...]:
    """The table of guards; the first row that matches decides."""
    rows = tomllib.loads((files("whystall.compilation") / "guards.toml").read_text("utf-8"))["row"]
    return tuple(
        GuardKind(row["kind"], re.compile(row["pattern"]), row.get("value", False), row["edit"]) for row in rows
    )


def guard_kind(guard: str) -> GuardKind:
    """The kind of a guard.

    >>> guard_kind("___stack0 == 123.1").kind, guard_kind("L['x'].size()[0] == 8").kind, guard_kind("n == 3").kind
    ('a scalar from before a graph break', 'a size', "an integer's value")
    """
    return next(row for row in guard_kinds() if row.pattern.search(guard))


def guard_shape(guard: str) -> str:
    """The guard without the numbers that differ from one recompile to the next.

    >>> guard_shape("tensor 'x' size mismatch at index 0. expected 8, actual 9")
    "tensor 'x' size mismatch at index 0. expected N, actual N"
    >>> guard_shape("___stack0 == 123.1"), guard_shape("2 <= L['x'].size()[0] <= 8")
    ('___stack0 == N', "N <= L['x'].size()[0] <= N")
    """
    return _LEADING.sub("N", _NUMBERS.sub(r"\1N", guard))
