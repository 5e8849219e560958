"""``whystall capture``: a window of a job that runs under ``whystall run``, now, and its findings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whystall.cli.rendering import render
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console

_LOOKS_EVERY_S: Final = 0.2


class Capture:
    """The verb ``capture``."""

    name = "capture"
    help = "record a few steps of a job that runs under `whystall run`, now, and say what they show"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("run_folder", metavar="RUN", help="the folder of a run that goes on")
        parser.add_argument(
            "--within", type=float, default=120.0, metavar="S", help="give up after this many seconds (120)"
        )

    def run(self, options: Namespace, console: Console) -> int:
        """Asks for a window, waits for it, reports. Raises `InputError` where no run goes on or no window comes."""
        from whystall.run_folder.description import is_run
        from whystall.run_folder.layout import CAPTURE_NOW

        if not options.within > 0:
            raise UsageError(f"--within must be above 0, not {options.within:g}")
        folder = Path(options.run_folder)
        if not is_run(folder):
            raise InputError(f"{folder}: no folder of a run (there is no run.json of whystall)")
        if _has_ended(folder):
            raise InputError(f"{folder}: the job has ended; whystall report {folder} shows what was recorded of it")
        before = _traces(folder)
        (folder / CAPTURE_NOW).touch()
        console.note("whystall: a window was asked for; it opens with the job's next step")
        _wait(folder, before, options.within)
        import whystall

        report = whystall.analyze(folder, cache=False)
        console.result(render(report, "terminal", whole=console.verbose).rstrip())
        console.next(f"whystall report {folder}")
        return 0


def _has_ended(folder: Path) -> bool:
    from whystall.run_folder.alive import has_ended

    return has_ended(folder)


def _traces(folder: Path) -> dict[int, set[str]]:
    """The names of the traces of each rank."""
    from whystall.run_folder.layout import rank_file, rank_files

    found: dict[int, set[str]] = {}
    for path in rank_files(folder, "samples"):
        if (file := rank_file(path.name)) is not None:
            found[file.rank] = set()
    for path in rank_files(folder, "trace"):
        if (file := rank_file(path.name)) is not None:
            found.setdefault(file.rank, set()).add(path.name)
    return found


def _wait(folder: Path, before: dict[int, set[str]], within_s: float) -> None:
    """Until each rank that steps has written a trace more, or the job has ended with one at least."""
    deadline = time.monotonic() + within_s
    while True:
        now = _traces(folder)
        new = [bool(names - before.get(rank, set())) for rank, names in now.items()]
        if new and all(new):
            return
        ended = _has_ended(folder)
        if ended and any(new):
            return
        if ended:
            raise InputError(f"{folder}: the job ended before a window was recorded")
        if time.monotonic() > deadline:
            missing = ", ".join(str(rank) for rank, there in zip(now, new, strict=True) if not there)
            who = f"rank {missing} has recorded none" if missing else "no step has ended yet"
            raise InputError(f"{folder}: no window within {within_s:g} s: {who}")
        time.sleep(_LOOKS_EVERY_S)
