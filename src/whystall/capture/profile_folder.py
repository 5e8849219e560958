"""The folder of `whystall.profile`: its own earlier recording is replaced, other files are left alone.

A cell of a notebook runs again with the same folder, and the ranks of a job share theirs: a recording is replaced once
all its writers are this process or have ended.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Final

import msgspec

from whystall._version import __version__
from whystall.capture import clock
from whystall.capture.config import Schedule
from whystall.errors import UsageError
from whystall.json_text import NotJsonError, parse_json
from whystall.run_folder.claim import claim, occupied, started_s
from whystall.run_folder.contents import read_run_folder
from whystall.run_folder.description import RunDescription, encode, is_run, read_document
from whystall.run_folder.layout import RUN_JSON, rank_files

_KIND: Final = "profile"
_HEAD_BYTES: Final = 4096


def prepared(folder: Path, schedule: Schedule) -> Path:
    """The folder to write to, marked as a run: the requested one, or one beside it where that is not ours."""
    marker = encode(_description(schedule))
    try:
        if not folder.is_dir() or not is_run(folder):
            return _as_it_is(folder, marker)
        if read_document(folder / RUN_JSON).get("kind") == _KIND:
            if any(_is_at_work(pid) for pid in _writers(folder)):
                return folder  # other ranks of this job
            claim(folder, force=True, since_s=_launched_s(), marker=marker)
            return folder
    except UsageError:
        pass
    others = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 10_000))
    free = next(path for path in others if not path.exists())
    warnings.warn(f"{folder} holds what whystall.profile did not write: recording into {free}", stacklevel=3)
    return _as_it_is(free, marker)


def _as_it_is(folder: Path, marker: bytes) -> Path:
    """A folder without a mark: it gets one unless files with the names of a run's lie in it, which stay."""
    folder.mkdir(parents=True, exist_ok=True)
    found = occupied(folder, None)
    if not found.earlier and not found.foreign:
        claim(folder, force=False, since_s=_launched_s(), marker=marker)
    return folder


def finished(folder: Path, schedule: Schedule) -> None:
    """Writes ``run.json`` with the descriptions of the ranks that have ended."""
    if read_document(folder / RUN_JSON).get("kind") != _KIND:
        return
    found = read_run_folder(folder)
    whole = msgspec.structs.replace(
        _description(schedule),
        ranks=found.ranks,
        traces=[path.name for path in found.traces],
        samples=[path.name for path in found.samples],
    )
    (folder / RUN_JSON).write_bytes(encode(whole))


def _description(schedule: Schedule) -> RunDescription:
    return RunDescription(
        whystall=__version__,
        kind=_KIND,
        command=_KIND,
        exit_code=None,
        began_unix_ns=clock.time_ns(),
        schedule=schedule,
    )


def _launched_s() -> float | None:
    """The start of the launcher of several workers: later files of theirs stay."""
    size = os.environ.get("WORLD_SIZE", "")
    return started_s(os.getppid()) if size.isdecimal() and int(size) > 1 else None


def _writers(folder: Path) -> list[int]:
    """The processes that wrote the samples of a folder."""
    return [pid for path in rank_files(folder, "samples") if isinstance(pid := _head(path).get("pid"), int)]


def _head(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return parse_json(file.readline(_HEAD_BYTES), type=dict[str, Any])
    except (OSError, NotJsonError):
        return {}


def _is_at_work(pid: int) -> bool:
    """Whether a process other than this one runs; of other machines' nothing is known."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
