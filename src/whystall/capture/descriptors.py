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
        self._number = _moved(os.open(path, flags | os.O_CLOEXEC, mode))
        self._file = _file(self._number)

    @property
    def number(self) -> int:
        """Its descriptor; opened again where the job closed it. Raises `OSError` where the file is gone."""
        if not self.is_ours:
            number = os.open(self.path, self._flags)
            if _file(number) != self._file and not self.path.startswith("/proc/"):  # another took its place
                os.close(number)
                raise FileNotFoundError(self.path)
            self._number = _moved(number)
            self._file = _file(self._number)
        return self._number

    @property
    def is_ours(self) -> bool:
        """Whether the number still is this file's."""
        with suppress(OSError):
            return _file(self._number) == self._file
        return False

    def close(self) -> None:
        """Closes it, and nothing of the job's."""
        if self.is_ours:
            with suppress(OSError):
                os.close(self._number)
        self._number = -1


def _file(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino


def _moved(number: int) -> int:
    """The same file under a number that is out of the job's way, where there may be one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft <= _ABOVE:
        return number
    with suppress(OSError):
        moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
        os.close(number)
        return moved
    return number
