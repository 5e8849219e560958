"""Builds counting's compiled part in the background, beside the first count that would use it, for later processes.

A process of its own compiles and tries it: a part that does not fit this torch ends that process, and not the user's.
It goes where ``whystall doctor --build-counter`` puts it, into the package's own folder and into no cache: who may
write it may write whystall itself. Where that folder is another user's, nothing is built.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Final

from whystall.errors import WhystallError
from whystall.model import native

OPT_OUT: Final = "WHYSTALL_BUILD_COUNTER"
"""The environment variable that, as ``0``, leaves building to ``whystall doctor --build-counter``."""
_LOWEST_PRIORITY: Final = 19
_GIVEN_UP_AFTER_S: Final = 600
_PROGRAM: Final = "import sys; from whystall.model.native.background import build_for; build_for(sys.argv[1])"


def begin() -> Thread | None:
    """Begins to build a missing part, at most once for a torch; ``None`` where nothing is to be done.

    The thread only waits for the process that builds.
    """
    return _begun(native.SOURCE)


@cache
def _begun(source: Path) -> Thread | None:
    if os.environ.get(OPT_OUT) == "0" or not _is_ours(source.parent) or failure() is not None:
        return None
    waiting = Thread(target=_run, args=(source,), name="whystall-build-counter", daemon=True)
    waiting.start()
    return waiting


def failure() -> str | None:
    """Why the part could not be built for this torch, if that was tried."""
    with contextlib.suppress(OSError):
        return _note().read_text("utf-8")
    return None


def build_for(source: str) -> None:
    """Builds the part unless another process is at it; a failure is written to a file, and raised nowhere."""
    native.SOURCE = Path(source)
    claim = _claim()
    if claim is None:
        return
    try:
        native.build()
    except WhystallError as error:
        with contextlib.suppress(OSError):
            _note().write_text(" ".join(str(error).split())[:400], "utf-8")
    finally:
        claim.unlink(missing_ok=True)


def _run(source: Path) -> None:
    with contextlib.suppress(OSError):
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-c", _PROGRAM, str(source)],
            env={key: value for key, value in os.environ.items() if not key.startswith("WHYSTALL_CAPTURE")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the job may end first, and Ctrl+C is for the job
        )
        os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
        process.wait()


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK)
    except (AttributeError, OSError):
        return False


def _note() -> Path:
    return native.built().with_suffix(".failed")


def _claim() -> Path | None:
    """A file that marks this process as the builder; ``None`` where another one builds, and has not taken too long."""
    path = native.built().with_suffix(".building")
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _GIVEN_UP_AFTER_S:
            path.unlink()
    try:
        path.open("x").close()
    except OSError:
        return None
    return path
