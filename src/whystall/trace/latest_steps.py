"""The end of a file of samples that is being written: the latest steps, at a cost that does not grow with the run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whystall.disk import reading
from whystall.json_text import NotJsonError, parse_json
from whystall.run_folder.samples import DISTURBED, SCHEMA

_END_BYTES: Final = 32 << 10
_HEAD_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class LatestSteps:
    """The number of the last step, and the median of the latest ones; ``None`` where all of them were disturbed."""

    number: int
    median_ns: int | None


def latest_steps(path: Path) -> LatestSteps | None:
    """The steps in the last 32 KiB of ``path``; ``None`` where no step has ended or the file cannot be read."""
    try:
        with reading.opened(path) as file:
            head = _decoded(file.readline(_HEAD_BYTES))
            begin = file.tell()
            end = file.seek(0, 2)
            file.seek(max(begin, end - _END_BYTES))
            lines = file.read(_END_BYTES).split(b"\n")
    except OSError:
        return None
    columns = head.get("columns") if isinstance(head, dict) and head.get("schema") == SCHEMA else None
    if not isinstance(columns, list) or not {"step", "duration_us", "flags"} <= set(map(str, columns)):
        return None
    rows = [row for row in map(_decoded, lines[:-1]) if isinstance(row, list) and len(row) == len(columns)]
    steps = [dict(zip(columns, row, strict=True)) for row in rows]
    whole = [one for one in steps if all(type(one[name]) is int for name in ("step", "duration_us", "flags"))]
    if not whole:
        return None
    undisturbed = [one["duration_us"] for one in whole if not one["flags"] & DISTURBED]
    median_ns = round(statistics.median(undisturbed) * 1000) if undisturbed else None
    return LatestSteps(whole[-1]["step"], median_ns)


def _decoded(line: bytes) -> Any:
    """One line, or ``None`` for an incomplete or foreign one."""
    try:
        return parse_json(line)
    except NotJsonError:
        return None
