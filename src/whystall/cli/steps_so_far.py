"""Output of `run` about a job's steps while it runs: the current one and the time of each, in few lines.

Lines, and none that is redrawn: the terminal is the job's, and its own progress bar would be overwritten.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Self

from whystall.report.format import duration
from whystall.report.names import clean, line_of_code
from whystall.run_folder.job_journal import latest_place, read_journals, the_first
from whystall.run_folder.layout import journals, rank_files
from whystall.trace.latest_steps import latest_steps

FIRST_AFTER_S: Final = 10.0
_LONGEST_WAIT_S: Final = 640.0
_LONG_NS: Final = 3_000_000_000
_LINES_IN_A_LOG: Final = 3
"""Without a terminal the lines stay in a file."""


class StepsSoFar:
    """A thread of the launcher that prints the job's progress occasionally."""

    def __init__(self, folder: Path, say: Callable[[str], None], waits: Iterable[float]) -> None:
        self._folder = folder
        self._say = say
        self._waits = waits
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="whystall-steps-so-far", daemon=True)

    def __enter__(self) -> Self:
        """Begins to wait for the first line."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The job has ended: the report holds the rest."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        began = time.monotonic()
        more = f"; `whystall watch {self._folder}` shows more"
        for wait_s in self._waits:
            if self._stop.wait(wait_s):
                return
            self._say(line_of(self._folder, time.monotonic() - began) + more)
            more = ""


def waits(*, terminal: bool) -> Iterator[float]:
    """The seconds before each line: ever longer ones, and without a terminal three of them."""
    longer = (min(FIRST_AFTER_S * 2**number, _LONGEST_WAIT_S) for number in itertools.count())
    return longer if terminal else itertools.islice(longer, _LINES_IN_A_LOG)


def line_of(folder: Path, running_s: float) -> str:
    """The job's progress after ``running_s``, from its first rank's latest output."""
    after = f"after {running_s:,.0f} s"
    files = rank_files(folder, "samples")
    latest = latest_steps(files[0]) if files else None
    if latest is None:
        return f"no step has ended {after}{stands_at(folder)}"
    pace = "" if latest.median_ns is None else f", {duration(latest.median_ns)} each lately"
    return f"step {latest.number:,} {after}{pace}"


def stands_at(folder: Path) -> str:
    """The line at which the main thread of the first process is, if it is there for a while."""
    kept = read_journals(folder)
    first = the_first(kept)
    place = next((latest_place(path) for pid, path in journals(folder) if kept.get(pid) is first), None)
    if place is None or place.ns < _LONG_NS:
        return ""
    inner = f" ({clean(place.leaf, 160)})" if place.leaf else ""
    line = line_of_code(clean(place.file, 160), place.line)
    return f"; for {duration(place.ns)} the main thread is at {line}{inner}"
