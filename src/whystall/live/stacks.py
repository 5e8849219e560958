"""Stacks of a running process by py-spy, which reads its memory from outside and does not stop it.

``record`` gives every thread's stack at equal distances, ``dump`` one look with who ran and who held the GIL.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from whystall.errors import InputError
from whystall.json_text import NotJsonError, parse_json
from whystall.live.observation import Look, Stack
from whystall.vocabulary.frames import Frame

PER_SECOND: Final = 100
_LOOK_EVERY_S: Final = 0.12
_PATIENCE_S: Final = 20.0
_MOST_BYTES: Final = 256 << 20
_NOT_ALLOWED: Final = (
    "py-spy may not read the memory of process {pid}: run whystall as its user with the right to trace "
    "(sudo, or in a container CAP_SYS_PTRACE)"
)
Stacks = dict[tuple[int, int], list[Stack]]
"""By process and thread."""


def spy() -> str | None:
    """The program, if it is installed: beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


@contextlib.contextmanager
def recording(program: str, pid: int, seconds: float) -> Iterator[Callable[[], Stacks]]:
    """Records while its body runs; the yielded function waits for the end and returns the stacks."""
    with tempfile.TemporaryDirectory(prefix="whystall-attach-") as folder:
        path = Path(folder) / "stacks.json"
        command = [
            program, "record", "--pid", str(pid), "--format", "speedscope", "--output", str(path),
            "--duration", str(max(round(seconds), 1)), "--rate", str(PER_SECOND),
            "--nonblocking", "--subprocesses", "--threads", "--idle", "--full-filenames",
        ]  # fmt: skip
        with subprocess.Popen(  # noqa: S603 - a program that was found, and numbers
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as ran:

            def stacks() -> Stacks:
                _, said = ran.communicate(timeout=seconds + _PATIENCE_S)
                if not path.is_file():
                    raise _refusal(pid, said.decode("utf-8", "replace"))
                return read_speedscope(path)

            try:
                yield stacks
            finally:
                if ran.poll() is None:
                    ran.kill()


def _refusal(pid: int, said: str) -> InputError:
    if "ermission" in said or "not permitted" in said:
        return InputError(_NOT_ALLOWED.format(pid=pid))
    told = [line.strip() for line in said.splitlines() if line.strip().startswith("Error")]
    return InputError(f"py-spy could not look at process {pid}: {told[0] if told else 'it gave no stacks'}")


def read_speedscope(path: Path) -> Stacks:
    """The stacks by process and thread, as py-spy names its profiles."""
    if path.stat().st_size > _MOST_BYTES:
        raise InputError("py-spy's stacks are larger than 256 MiB: watch for a shorter time")
    told = parse_json(path.read_bytes())
    frames = [
        Frame(str(one["file"] or ""), int(one["line"] or 0), str(one["name"])) for one in told["shared"]["frames"]
    ]
    out: Stacks = {}
    for profile in told["profiles"]:
        words = str(profile["name"]).split(maxsplit=4)
        if len(words) < 4 or words[0] != "Process" or words[2] != "Thread":
            continue
        # The labels of process and thread have no file.
        stacks = [tuple(frames[at] for at in sample if frames[at].file) for sample in profile["samples"]]
        out[int(words[1]), int(words[3], 0)] = stacks
    return out


def looks(program: str, pid: int, ended: Callable[[], bool]) -> Iterator[list[dict[str, Any]]]:
    """Samples all threads a few times a second until its end."""
    command = [program, "dump", "--pid", str(pid), "--json", "--nonblocking", "--full-filenames"]
    while not ended():
        begin = time.monotonic()
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_PATIENCE_S)  # noqa: S603 - as above
        if ran.returncode == 0:
            with contextlib.suppress(NotJsonError):
                yield parse_json(ran.stdout)
        time.sleep(max(_LOOK_EVERY_S - (time.monotonic() - begin), _LOOK_EVERY_S / 2))


def look_of(threads: list[dict[str, Any]], training: int) -> Look | None:
    """A sample of the training thread; ``None`` where it was not there."""
    own = next((one for one in threads if one.get("os_thread_id") == training), None)
    if own is None:
        return None
    frames = [Frame(str(one["filename"]), int(one["line"]), str(one["name"])) for one in own["frames"]]
    holder = next((int(one["os_thread_id"]) for one in threads if one.get("owns_gil")), None)
    return Look(tuple(reversed(frames)), bool(own.get("active")), holder)
