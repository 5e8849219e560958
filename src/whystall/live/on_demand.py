"""A window that torch's own profiler records on demand, for a process that was not started by whystall.

A job that was started with ``KINETO_USE_DAEMON=1`` asks a local datagram socket, dynolog's, every few seconds whether
to record something. We are that socket for as long as it takes to answer one process: nothing is loaded into it and no
port is opened. The kernel identifies the sender, not its message.

A message is a header (the length of the content, and its type) and the content: ``ctxt`` introduces a process, ``req``
asks for a configuration, of events, activities or both, which is lines of ``KEY=VALUE``. Source: dynolog's ipcfabric
and libkineto's IpcFabricConfigClient; tried with torch 2.13 on a CPU.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from whystall.disk import reading
from whystall.errors import InputError
from whystall.json_text import parse_json

USE_DAEMON: Final = "KINETO_USE_DAEMON"
_SOCKET_FOLDER: Final = "KINETO_IPC_SOCKET_DIR"
_NAME: Final = "dynolog"
_HEADER: Final = struct.Struct("=Q32s")
_KIND: Final = struct.Struct("=i")
_ACTIVITIES: Final = 2
_REGISTERED: Final = struct.pack("=i", 1)
_CREDENTIALS: Final = struct.Struct("=iII")
_SCM_CREDENTIALS: Final = 2
_LARGEST: Final = 1 << 16
_LOOKS_EVERY_S: Final = 0.2
_FORGOTTEN_S: Final = 12.0
"""A process that requests again this long after it got a window, and has written nothing, did not get the answer."""
_LONGEST_END: Final = 64
_PROC: Final = Path("/proc")


def settings_of(pid: int, proc: Path = _PROC) -> dict[str, str]:
    """The daemon's variables in a process's environment, and no others. Raises `InputError`."""
    try:
        data = (proc / str(pid) / "environ").read_bytes()
    except OSError as error:
        raise InputError(f"the environment of process {pid} cannot be read: {error.strerror or error}") from None
    pairs = (part.partition(b"=") for part in data.split(b"\0"))
    wanted = {USE_DAEMON.encode(), _SOCKET_FOLDER.encode()}
    found = {name.decode(): os.fsdecode(value) for name, _, value in pairs if name in wanted}
    if USE_DAEMON not in found:
        raise InputError(
            f"process {pid} does not accept requests for a window: start the job with {USE_DAEMON}=1 in its "
            f"environment, or through "
            "whystall run"
        )
    return found


def window(pid: int, lasts_s: float, folder: Path, *, within_s: float, proc: Path = _PROC) -> Path:
    """The trace of a window of the process, which writes it into the folder. Raises `InputError`."""
    settings = settings_of(pid, proc)
    folder.mkdir(parents=True, exist_ok=True)
    target = _free(folder, pid)
    wanted = {
        "PROFILE_START_TIME": "0",
        "ACTIVITIES_LOG_FILE": str(target.absolute()),
        "ACTIVITIES_DURATION_MSECS": str(max(round(lasts_s * 1e3), 1)),
        "PROFILE_REPORT_INPUT_SHAPES": "true",
    }
    text = "".join(f"{name}={value}\n" for name, value in wanted.items())
    answers = _Answers(pid, text.encode(), lasts_s)
    trace = _named(target, pid)
    deadline = time.monotonic() + within_s + lasts_s
    with _endpoint(settings.get(_SOCKET_FOLDER)) as asked:
        # It may read a late answer only after its next request: the socket must stay open until the end.
        while not _is_whole(trace):
            if not (proc / str(pid)).is_dir():
                raise InputError(f"process {pid} ended before its window was written")
            if time.monotonic() > deadline:
                raise InputError(answers.why_nothing(trace))
            answers.next(asked, again=not trace.exists())
    return trace


def _free(folder: Path, pid: int) -> Path:
    """The requested name, to which the profiler adds the process's number: one without an existing trace."""
    names = (f"window{number}.json" for number in itertools.count(1))
    return next(folder / name for name in names if not _named(folder / name, pid).exists())


def _named(target: Path, pid: int) -> Path:
    return target.with_name(f"{target.stem}_{pid}.json")


@contextlib.contextmanager
def _endpoint(folder: str | None) -> Iterator[socket.socket]:
    """Dynolog's socket: in the abstract namespace, with its closing zero, or a file in the folder that the job has."""
    address: str | bytes = b"\0" + _NAME.encode() + b"\0" if folder is None else str(Path(folder) / _NAME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        try:
            made.bind(address)
        except OSError as error:
            raise InputError(
                f"dynolog's socket is taken ({error.strerror or error}): where that daemon runs, ask it with "
                "`dyno gputrace`"
            ) from None
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        made.settimeout(_LOOKS_EVERY_S)
        try:
            yield made
        finally:
            if folder is not None:
                Path(folder, _NAME).unlink(missing_ok=True)


class _Answers:
    """The answers to requests: the process gets its configuration, others get none."""

    def __init__(self, pid: int, config: bytes, lasts_s: float) -> None:
        self._pid, self._config, self._lasts_s = pid, config, lasts_s
        self._given_at: float | None = None

    def next(self, asked: socket.socket, *, again: bool) -> None:
        """Answers the next message, if one comes soon; a second time with a configuration with ``again``."""
        try:
            data, ancillary, _, sender = asked.recvmsg(_LARGEST, socket.CMSG_SPACE(_CREDENTIALS.size))
        except TimeoutError:
            return
        kind = data[8 : _HEADER.size].partition(b"\0")[0]
        if len(data) < _HEADER.size or not sender or kind not in (b"ctxt", b"req"):
            return
        is_it = kind == b"req" and _sender(ancillary) == self._pid and _asks_for_activities(data)
        is_due = self._given_at is None or (again and time.monotonic() > self._given_at + self._lasts_s + _FORGOTTEN_S)
        content = _REGISTERED if kind == b"ctxt" else self._config if is_it and is_due else b""
        with contextlib.suppress(OSError):  # it is gone, or does not listen
            asked.sendto(_HEADER.pack(len(content), kind) + content, sender)
            if content is self._config:
                self._given_at = time.monotonic()

    def why_nothing(self, trace: Path) -> str:
        """The sentence on a window that did not come."""
        if self._given_at is not None:
            return f"process {self._pid} took the window and wrote no whole trace of it to {trace}"
        return (
            f"process {self._pid} did not ask for a window: torch does every few seconds once it is imported, where it "
            "was built with Kineto"
        )


def _asks_for_activities(data: bytes) -> bool:
    """Whether a request is for more than events: while a window is recorded it is not."""
    return len(data) >= _HEADER.size + _KIND.size and bool(_KIND.unpack_from(data, _HEADER.size)[0] & _ACTIVITIES)


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """The process that sent a message, by the kernel's word."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[0])
    return None


def _is_whole(path: Path) -> bool:
    """Whether all of the trace is there."""
    with contextlib.suppress(OSError, ValueError):
        with reading.opened(path) as file:
            file.seek(-min(os.fstat(file.fileno()).st_size, _LONGEST_END), os.SEEK_END)
            end = file.read()
        return end.rstrip().endswith(b"}") and isinstance(parse_json(reading.content(path)), dict)
    return False
