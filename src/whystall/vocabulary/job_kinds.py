"""The software that runs a job, by the names that it leaves in a recording."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Literal

JobKind = Literal["serving", "sharded", "replicated"]


@cache
def _table() -> tuple[tuple[JobKind, re.Pattern[str]], ...]:
    rows = tomllib.loads((files("whystall.vocabulary") / "job_kinds.toml").read_text("utf-8"))["row"]
    return tuple((row["kind"], re.compile(row["pattern"])) for row in rows)


def kinds_told_by(names: Iterable[str]) -> set[JobKind]:
    """The software behind a job in which events and frames have these names.

    >>> sorted(kinds_told_by(["aten::mm", "FSDP::all_gather", "vllm/v1/worker/gpu_worker.py(88): execute_model"]))
    ['serving', 'sharded']
    """
    found: set[JobKind] = set()
    for name in names:
        found |= {kind for kind, pattern in _table() if kind not in found and pattern.search(name)}
    return found
