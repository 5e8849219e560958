"""Opens files that are read. A FIFO, a socket or a device never answers, or answers for ever: it is refused.

Every file that a user names, and every file found in a folder, is opened here.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Literal, overload

_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularError(OSError):
    """A path is neither a file nor a folder."""


def kind_of(mode: int) -> str:
    """The word for the kind of a path, by its mode."""
    return next((word for is_it, word in _KINDS if is_it(mode)), "a folder" if stat.S_ISDIR(mode) else "a file")


def require_regular(path: Path) -> os.stat_result:
    """The status of a regular file, through links.

    Raises `NotRegularError` for a pipe, a socket or a device, `IsADirectoryError` for a folder and another `OSError`
    where nothing can be found. For libraries that open a path by themselves.
    """
    return _checked(path.stat(), path)


def _checked(status: os.stat_result, path: Path) -> os.stat_result:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(
            errno.EINVAL,
            f"it is {kind_of(status.st_mode)}, and only regular files are read. Save its content to a file first",
            str(path),
        )
    return status


@overload
def opened(path: Path, *, buffering: Literal[0]) -> io.FileIO: ...
@overload
def opened(path: Path) -> io.BufferedReader: ...
def opened(path: Path, *, buffering: int = -1) -> io.FileIO | io.BufferedReader:
    """A regular file, open for reading bytes. Raises `OSError` for everything else, without waiting."""
    require_regular(path)  # a device may act on being opened
    # If a pipe without a writer took its place meanwhile, it is opened without waiting, and refused.
    raw = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _checked(os.fstat(raw), path)
        return os.fdopen(raw, "rb", 0) if buffering == 0 else os.fdopen(raw, "rb")
    except BaseException:
        os.close(raw)
        raise


def content(path: Path, most_bytes: int | None = None) -> bytes:
    """All bytes of a regular file. Raises `OSError` where it holds more than ``most_bytes``."""
    with opened(path) as file:
        if most_bytes is None:
            return file.read()
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return data


def text(path: Path, most_bytes: int | None = None) -> str:
    """The text of a regular file. Raises `OSError` for any other, and `UnicodeDecodeError`."""
    return content(path, most_bytes).decode("utf-8")


def lines(file: IO[bytes], longest: int) -> Iterator[bytes]:
    """The lines of a file; a line longer than ``longest`` bytes is cut to one byte more."""
    while line := file.readline(longest + 1):
        yield line
        while len(line) > longest and not line.endswith(b"\n"):
            line = file.readline(longest + 1)
