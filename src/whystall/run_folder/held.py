"""A window by the clock that a job held back until its end, and was killed before: it gets its name afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from whystall.run_folder.alive import is_gone
from whystall.run_folder.description import read_document
from whystall.run_folder.layout import (
    description_name,
    rank_files,
    staged_description,
    staged_trace,
    trace_name,
)

_DESCRIPTION: Final = re.compile(r"rank(0|[1-9][0-9]{0,8})\.run\.([1-9][0-9]{0,9})")


def publish_held(folder: Path) -> list[Path]:
    """Gives complete traces of dead processes their names, in a run without other files; returns these."""
    if rank_files(folder, "samples") or rank_files(folder, "trace") or not folder.is_dir():
        return []
    published = []
    for description in sorted(folder.iterdir()):
        named = _DESCRIPTION.fullmatch(description.name)
        if named is None:
            continue
        rank, pid = int(named[1]), int(named[2])
        trace = folder / staged_trace(trace_name(rank), pid)
        unfinished = trace.with_name(f"{trace.name}.json")
        target = folder / trace_name(rank)
        whole = trace.is_file() and not unfinished.exists() and not target.exists()
        if not whole or not is_gone(read_document(description).get("process")):
            continue
        published.append(trace.rename(target))
        (folder / staged_description(rank, pid)).replace(folder / description_name(rank))
    return published
