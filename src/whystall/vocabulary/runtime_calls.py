"""Kinds of calls of a device's runtime or driver, by their names."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

CallKind = Literal[
    "sync",
    "allocate",
    "free",
    "free_that_waits",
    "graph",
    "launch",
    "kernel",
    "copy",
    "load",
    "capture_begin",
    "capture_end",
    "instantiate",
]


@cache
def _table() -> dict[str, re.Pattern[str]]:
    rows = tomllib.loads((files("whystall.vocabulary") / "runtime_calls.toml").read_text("utf-8"))
    return {kind: re.compile(row["pattern"], re.IGNORECASE if row.get("any_case") else 0) for kind, row in rows.items()}


def is_call(name: str, *kinds: CallKind) -> bool:
    """Whether a call has one of some kinds.

    >>> is_call("cudaDeviceSynchronize", "sync"), is_call("cudaLaunchKernel", "sync", "allocate")
    (True, False)
    """
    return any(_table()[kind].search(name) for kind in kinds)
