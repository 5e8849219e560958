"""Issuers of collectives, by the names around the call."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_NEVER: Final = r"(?!)"


@dataclass(frozen=True, slots=True)
class IssuerRow:
    """A kind of issuer, and the patterns of the frames and operators around its collectives; one must match."""

    kind: str
    frame: re.Pattern[str]
    operator: re.Pattern[str]


@cache
def issuer_rows() -> tuple[IssuerRow, ...]:
    """The table of issuers; the first row that matches decides.

    >>> [row.kind for row in issuer_rows() if row.operator.search("SyncBatchNorm")]
    ['norms']
    """
    rows = tomllib.loads((files("whystall.vocabulary") / "issuers.toml").read_text("utf-8"))["row"]
    return tuple(
        IssuerRow(row["kind"], *(re.compile(row.get(key, _NEVER)) for key in ("frame", "operator"))) for row in rows
    )
