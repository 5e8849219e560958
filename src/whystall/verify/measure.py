"""One block: a command run to its end under observation, or a function called some times."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import numpy as np

from whystall._version import __version__
from whystall.analysis.run_results import RunSummary
from whystall.analysis.run_summary import run_summary
from whystall.capture.config import CaptureConfig, Schedule
from whystall.capture.launch import watched_environment
from whystall.diagnosis.causes import Statistic
from whystall.errors import InputError, UsageError
from whystall.run_folder.contents import read_run_folder
from whystall.run_folder.description import RunDescription, encode, read_document, table
from whystall.run_folder.layout import RUN_JSON, rank_files
from whystall.trace.samples import read_samples

_FEWEST_STEPS: Final = 5
_LONGEST_OUTPUT: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Variant:
    """A command with its own environment variables, and the folder it runs in (``None``: where whystall runs)."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The measurements of one run, in seconds: the whole of it, and its steps if enough steady ones were seen."""

    run_s: float
    by: dict[Statistic, float] | None
    steps: int
    loss: float | str | None
    """The match of ``--loss``: a number, or the text if it is none."""
    exit_code: int
    kind: str | None = None
    """The kind of its steps, in words: their end."""


def run_block(variant: Variant, loss: re.Pattern[str] | None, *, timeout_s: float | None = None) -> Block:
    """Runs a command once, with only its steps sampled. Raises `UsageError` for a command that does not exist."""
    folder = Path(tempfile.mkdtemp(prefix="whystall-verify-"))
    try:
        config = CaptureConfig(folder=str(folder), schedule=Schedule(repeat=0))
        began = time.monotonic()
        code, output = run_command(variant, config, timeout_s)
        elapsed = time.monotonic() - began
        found = steady_steps(folder)
        steps = found.measured if found is not None else 0
        by: dict[Statistic, float] | None = None
        if found is not None and steps >= _FEWEST_STEPS:
            by = {"mean": found.mean_ns / 1e9, "median": found.median_ns / 1e9}
        return Block(elapsed, by, steps, _last_number(loss, output), code, _kind_of_steps(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_recorded(variant: Variant, folder: Path, timeout_s: float | None) -> tuple[int, str]:
    """Runs a command to its end with a recording; ``folder`` is then a run folder, as that of ``whystall run``.

    Returns its exit code and the end of its output.
    """
    schedule, began = Schedule(), time.time_ns()
    code, output = run_command(variant, CaptureConfig(folder=str(folder), schedule=schedule), timeout_s)
    found = read_run_folder(folder)
    described = RunDescription(
        whystall=__version__,
        kind="command",
        command=Path(variant.command[0]).name,
        exit_code=code,
        began_unix_ns=began,
        ended_unix_ns=time.time_ns(),
        schedule=schedule,
        ranks=found.ranks,
        traces=[path.name for path in found.traces],
        samples=[path.name for path in found.samples],
    )
    (folder / RUN_JSON).write_bytes(encode(described))
    return code, output


def run_command(variant: Variant, config: CaptureConfig, timeout_s: float | None) -> tuple[int, str]:
    """Runs a command to its end: its exit code, and the end of its output."""
    environment = watched_environment(config, {**os.environ, **dict(variant.environment)})
    with tempfile.TemporaryFile() as stream:
        try:
            with (
                ended_by_signals(),
                subprocess.Popen(  # noqa: S603 - it is what the user asked to run
                    variant.command,
                    env=environment,
                    cwd=variant.folder,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                ) as running,
            ):
                try:
                    code = running.wait(timeout_s)
                except BaseException:  # too late, or a signal, which the session does not get
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(running.pid, signal.SIGKILL)
                    raise
        except FileNotFoundError:
            raise UsageError(f"{variant.command[0]}: no such command") from None
        except PermissionError:
            raise UsageError(f"{variant.command[0]}: permission denied") from None
        except subprocess.TimeoutExpired:
            raise UsageError(f"{' '.join(variant.command)}: not done after {timeout_s:g} s") from None
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - _LONGEST_OUTPUT, 0))
        return code, stream.read().decode("utf-8", "replace")


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `SystemExit` here, so that the command, in a session of its own, is ended too."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def steady_steps(folder: Path) -> RunSummary | None:
    """The account of the rank with the most steady steps."""
    found = []
    for path in rank_files(folder, "samples"):
        try:
            found.append(run_summary(read_samples(path)))
        except InputError:
            continue
    return max((one for one in found if one is not None), key=lambda one: one.measured, default=None)


def _kind_of_steps(folder: Path) -> str | None:
    """The event that ends the steps of a run's first rank; for a model that does not train, the kind of its passes."""
    for rank in map(read_document, rank_files(folder, "description")):
        source, rhythm = rank.get("steps_from"), table(rank.get("facts")).get("rhythm")
        if isinstance(source, str):
            return f"{source} ({rhythm})" if isinstance(rhythm, str) else source
    return None


def _last_number(pattern: re.Pattern[str] | None, text: str) -> float | str | None:
    """The number in the last match of a pattern (its first group), or its text if it is none."""
    found = pattern.findall(text) if pattern is not None else []
    if not found:
        return None
    try:
        return float(found[-1])
    except ValueError:
        return str(found[-1])


def call_block(function: Callable[[], object], repeats: int) -> float:
    """Seconds of one call, the median of ``repeats``."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - began)
    return float(np.median(times)) / 1e9


def interleaved(pairs: int) -> Sequence[tuple[int, int]]:
    """The order of blocks: 0 before, 1 after, with their pair; ABBA, so that a drift hits both alike.

    >>> interleaved(2)
    [(0, 0), (1, 0), (1, 1), (0, 1)]
    """
    return [(variant if pair % 2 == 0 else 1 - variant, pair) for pair in range(pairs) for variant in (0, 1)]


def toggled(text: str, command: Sequence[str]) -> tuple[Variant, Variant]:
    """The two variants of ``NAME=OLD,NEW``. Raises `UsageError` for another form."""
    name, equals, values = text.partition("=")
    parts: list[str] = values.split(",")
    if not equals or len(parts) != 2 or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError(f"--toggle takes NAME=OLD,NEW (an environment variable), not {text!r}")
    before, after = (Variant(tuple(command), ((name, value),)) for value in parts)
    return before, after
