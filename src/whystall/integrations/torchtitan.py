"""torchtitan: a report on the traces that its profiler writes, while it trains or afterwards.

    Profiler.Config(enable_profiling=True, trace_post_processor=Function.Config(fn=report_on))

torchtitan's profiler leaves ``<dump_folder>/<save_traces_folder>/iteration_N/rankR_trace.json.gz``.
Tested against the real package (tests/integrations).
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

from whystall.errors import InputError

_ITERATION = re.compile(r"^iteration_(\d+)$")
_FIRST_RANK = re.compile(r"^rank0_trace\.json")
_started: list[subprocess.Popen[bytes]] = []


def report_on(trace: str) -> None:
    """For ``trace_post_processor``: makes ``report.html`` beside the first rank's trace, in a process of its own.

    Training goes on meanwhile; a report that fails does not disturb it. It covers the first rank alone, since others
    may still be writing: ``whystall report`` on the iteration's folder takes them all.
    """
    path = Path(trace)
    if not _FIRST_RANK.match(path.name):
        return
    _started[:] = [one for one in _started if one.poll() is None]
    line = [sys.executable, "-m", "whystall", "report", str(path), "-o", str(path.with_name("report.html")), "--quiet"]
    with contextlib.suppress(OSError):
        _started.append(
            subprocess.Popen(  # noqa: S603 - our own program
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )


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
