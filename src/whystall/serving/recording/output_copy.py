"""A copy of a command's output: the command writes to a pipe or a terminal of ours, and we write to the user's.

This needs nothing of the server's version, logging or environment, and has what no logging setting has: a crash's text.
The command finds a terminal exactly where it would find one alone. If its two streams are one file, they share one
pipe, so that their order stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from whystall.serving.recording.own_lines import OwnLines

__all__ = ["OutputCopy"]

_PIECE: Final = 1 << 16
_TOGETHER_S: Final = 0.02
"""The wait for the rest of a line; a progress bar without an end of line is shown after it."""
_GATHER_S: Final = 0.05
"""The pause after lines that are kept and not shown, so that a step's line does not wake this process each time.

A server of 170 steps a second cost 2 % of a core without it. A terminal holds 4 KiB, after which the server would wait.
"""
_GATHER_AT_TERMINAL_S: Final = 0.01
_LONGEST_LINE: Final = 1 << 16
_MOST_BYTES: Final = 2 << 30
"""The most that is kept: about eight million step lines, twice what the reader takes."""
_AFTER_END_S: Final = 5.0
"""Patience with processes that still hold the output when the command has ended: engines whose server was killed."""
_OPOST: Final = 1
_LFLAG: Final = 3


class OutputCopy:
    """The standard streams for a command, copied into the file ``path``, which must not exist.

    Raises `OSError` where the file or the pipes cannot be made.
    """

    def __init__(self, path: Path, own: OwnLines) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._kept = 0
        self.damage: str | None = None
        self._copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._streams: list[_Stream] = []
        self._ends: dict[int, int] = {}
        try:
            self._connect()
        except OSError:
            self.close()
            raise

    def _connect(self) -> None:
        by_file: dict[tuple[int, int, int], int] = {}
        for target in (1, 2):
            try:
                found = os.fstat(target)
            except OSError:  # closed by the user: so it is for the command
                continue
            identity = (found.st_dev, found.st_ino, found.st_rdev)
            if identity not in by_file:
                source, by_file[identity] = _terminal(target) if os.isatty(target) else os.pipe()
                self._streams.append(_Stream(source, target, self._own, self._keep))
            self._ends[target] = by_file[identity]

    @property
    def stdout(self) -> int | None:
        """The command's standard output; ``None`` for that of this process."""
        return self._ends.get(1)

    @property
    def stderr(self) -> int | None:
        """The command's standard error."""
        return self._ends.get(2)

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Copies from the start of the command to its end, and to that of its output."""
        self._close_ends()
        before = self._follow_size()
        for stream in self._streams:
            stream.start()
        try:
            yield
        finally:
            latest = time.monotonic() + _AFTER_END_S
            for stream in self._streams:
                stream.finish(max(latest - time.monotonic(), 0.0))
            if before is not None:
                signal.signal(signal.SIGWINCH, before)
            self.close()

    def _follow_size(self) -> signal._HANDLER:
        """Hands on changes of the terminal's size; the handler that was there, ``None`` where nothing is handed on."""
        terminals = [stream for stream in self._streams if stream.is_terminal]
        if not terminals or threading.current_thread() is not threading.main_thread():
            return None

        def follow(_number: int, _frame: FrameType | None) -> None:
            for one in terminals:
                _copy_size(one.target, one.source)

        return signal.signal(signal.SIGWINCH, follow)

    def close(self) -> None:
        """Closes what is open."""
        self._close_ends()
        for stream in self._streams:
            stream.close()
        copy, self._copy = self._copy, -1
        if copy >= 0:
            os.close(copy)

    def _close_ends(self) -> None:
        for end in set(self._ends.values()):
            os.close(end)
        self._ends = {}

    def _keep(self, data: bytes) -> None:
        """Appends to the copy; the first failure ends it and is remembered, since the server must go on."""
        with self._lock:
            if self.damage is not None or self._copy < 0:
                return
            if self._kept + len(data) > _MOST_BYTES:
                self.damage = f"is cut at {_MOST_BYTES >> 30} GiB"
                return
            self._kept += len(data)
            try:
                _write_all(self._copy, data)
            except OSError as error:
                self.damage = f"is cut, since it could not be written ({error.strerror or error})"


class _Stream:
    """One stream: a thread reads ``source``, keeps all of it, and writes to ``target`` all lines but our own."""

    def __init__(self, source: int, target: int, own: OwnLines, keep: Callable[[bytes], None]) -> None:
        self.source = source
        self.target = target
        self.is_terminal = os.isatty(source)
        self._gather_s = _GATHER_AT_TERMINAL_S if self.is_terminal else _GATHER_S
        self._own = own
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._wake, self._stop = os.pipe()
        self._unshown = b""
        self._mid_line = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="whystall-output", daemon=True)
        self._thread.start()

    def finish(self, patience_s: float) -> None:
        """Waits for the end of the output, and no longer than this after the command's end."""
        if self._thread is not None:
            self._thread.join(patience_s)
            os.write(self._stop, b"x")
            self._thread.join(1.0)

    def close(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return  # it writes to a terminal that was stopped: its files end with this process
        for one in (self.source, self._wake, self._stop):
            with contextlib.suppress(OSError):
                os.close(one)

    def _run(self) -> None:
        try:
            while (data := self._read()) is not None:
                self._keep(data)
                if not self._show(data):
                    select.select([self._wake], [], [], self._gather_s)
            self._write(self._unshown)
        except OSError:  # the user's stream was closed: so it is for the command
            os.close(self.source)
            self.source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _read(self) -> bytes | None:
        """The next piece; ``None`` at the end. A line that waits for its end is shown after a moment."""
        while True:
            ready, _, _ = select.select([self.source, self._wake], [], [], _TOGETHER_S if self._unshown else None)
            if self.source in ready:
                try:
                    return os.read(self.source, _PIECE) or None
                except OSError as error:
                    if error.errno == errno.EIO:  # the end of a terminal
                        return None
                    raise
            if self._wake in ready:
                return None
            self._write(self._unshown)
            self._unshown, self._mid_line = b"", True

    def _show(self, data: bytes) -> bool:
        """Shows all lines but our own; whether there was anything to show."""
        whole, shown = self._unshown + data, b""
        if self._mid_line:
            shown, feed, whole = whole.partition(b"\n")
            shown += feed
            self._mid_line = not feed
        end = whole.rfind(b"\n") + 1
        lines, self._unshown = whole[:end], whole[end:]
        if self._own.may_be_in(lines):
            lines = b"".join(line for line in _lines(lines) if line not in self._own)
        if len(self._unshown) > _LONGEST_LINE:
            lines, self._unshown, self._mid_line = lines + self._unshown, b"", True
        self._write(shown + lines)
        return bool(shown or lines or self._unshown)

    def _write(self, data: bytes) -> None:
        try:
            _write_all(self.target, data)
        except OSError as error:
            if error.errno in {errno.EPIPE, errno.EBADF}:
                raise
            # A full disk under the user's own file: the command goes on, as it might alone.


def _lines(data: bytes) -> list[bytes]:
    """The lines with their ends; only a line feed ends one."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(file, view) :]
        except BlockingIOError:  # the file may be shared with a program that made it so
            select.select([], [file], [])


def _terminal(like: int) -> tuple[int, int]:
    """Both ends of a terminal of the size and settings of another, which alone processes the output."""
    ours, theirs = pty.openpty()
    with contextlib.suppress(termios.error):
        settings = termios.tcgetattr(like)
        settings[_OPOST] &= ~termios.OPOST
        settings[_LFLAG] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
    _copy_size(like, theirs)
    os.set_inheritable(ours, False)
    return ours, theirs


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
