"""torchtitan: a report on the traces that it has written already.

torchtitan's profiler leaves ``<dump_folder>/<save_traces_folder>/iteration_N/rankR_trace.json``.
Reasoned from that layout; torchtitan itself does not install here, so this is untested against it.
"""

from __future__ import annotations

import re
from pathlib import Path

from whystall.errors import InputError

_ITERATION = re.compile(r"^iteration_(\d+)$")


def traces_of(folder: str | Path, iteration: int | None = None) -> list[Path]:
    """The traces of one iteration (by default the last), for `whystall.analyze`.

    Raises `InputError` when the folder has none.
    """
    found = {
        int(match[1]): sorted(path.glob("rank*_trace.json*"))
        for path in Path(folder).rglob("iteration_*")
        if path.is_dir() and (match := _ITERATION.match(path.name))
    }
    recorded = {number: traces for number, traces in found.items() if traces}
    if not recorded:
        raise InputError(f"{folder}: no iteration_N folder with rankR_trace.json files in it")
    chosen = max(recorded) if iteration is None else iteration
    if chosen not in recorded:
        raise InputError(
            f"{folder}: iteration {chosen} was not recorded; there are {', '.join(map(str, sorted(recorded)))}"
        )
    return recorded[chosen]
