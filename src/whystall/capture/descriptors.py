"""A file of ours that stays open beside the job.

A job may close descriptors that it did not open (``os.closerange``, as daemons do), and its own files then get their
numbers. Ours is therefore identified by the file behind it, which is checked before each use, and its number lies above
those of the job's files.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import resource
import signal
from pathlib import Path
from typing import Final

from whystall.capture.faults import suppress

_ABOVE: Final = 512
_PROC: Final = "/proc/"


def deadly_size() -> float:
    """Beyond which size a file ends the job: its limit, unless SIGXFSZ is ignored, as Python does by itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = soft == resource.RLIM_INFINITY or signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
    return math.inf if ignored else soft


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file. Raises `OSError` also where its size would end the job."""
    if len(data) > deadly_size():
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    path.write_bytes(data)


class OwnFile:
    """A file that is open under a number of ours. Raises `OSError` where it cannot be opened."""

    def __init__(self, path: str, flags: int, mode: int = 0o644) -> None:
        self.path = path
        """Its path; code that moves the file updates it."""
        self._flags = (flags | os.O_CLOEXEC) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
        self._number = _opened(path, flags | os.O_CLOEXEC, mode)
        self._file = _file(self._number)

    @property
    def number(self) -> int:
        """Its descriptor; opened again where the job closed it. Raises `OSError` where the file is gone."""
        if not self.is_ours:
            number = _opened(self.path, self._flags)
            if _file(number) != self._file and not self.path.startswith(_PROC):  # another took its place
                os.close(number)
                raise FileNotFoundError(self.path)
            self._number = number
            self._file = _file(self._number)
        return self._number

    @property
    def is_ours(self) -> bool:
        """Whether the number still is this file's."""
        return _is_file(self._number, self._file)

    def close(self) -> None:
        """Closes it, and nothing of the job's."""
        if self.is_ours:
            with suppress(OSError):
                os.close(self._number)
        self._number = -1


def _file(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino


def _opened(path: str, flags: int, mode: int = 0o644, *, again: bool = True) -> int:
    """Opens a file under a high number, out of the job's way, if the limit on open files allows it.

    Before that, the job may close the first number and open a file of its own under it.
    """
    number = os.open(path, flags, mode)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft <= _ABOVE:
        return number
    try:
        moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    except OSError:
        return number
    known = _file(moved)
    if not _is_of(moved, path):  # the job's
        os.close(moved)
        if not again:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
        return _opened(path, flags & ~(os.O_EXCL | os.O_TRUNC), mode, again=False)
    # The job could take the number only in the short time between these two calls.
    if _is_file(number, known):
        os.close(number)
    return moved


def _is_file(number: int, known: tuple[int, int]) -> bool:
    with suppress(OSError):
        return _file(number) == known
    return False


def _is_of(number: int, path: str) -> bool:
    """Whether a number refers to the file at a path."""
    if path.startswith(_PROC):  # the kernel makes new ones for each look
        target = Path(f"/proc/self/fd/{number}").readlink()
        return target.as_posix().startswith(_PROC) and target.name == Path(path).name
    with suppress(OSError):
        found = Path(path).stat()
        return _file(number) == (found.st_dev, found.st_ino)
    return False
