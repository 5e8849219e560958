"""Puts a finished file in its place atomically. It replaces only files that the caller allows.

The content is first written beside its place under a name of its own. Then, by the permission:

- ``NOTHING``: the file takes its name only if nothing has it, also if something appeared meanwhile.
- ``A_FILE``: a regular file is replaced (``--force``). Its mode and owner stay, a link to it stays a link, and other
  names of it (hard links) show the new content.
- ``OUR_OWN``: a file in a folder of ours, or one that begins as ours do. A link is refused.

A folder, a device, a pipe or a socket is never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import IO, Final

from whystall.disk.reading import kind_of, opened

IsOurs = Callable[[bytes], bool]
"""Whether a file is ours, by its first bytes."""

HEAD_BYTES: Final = 256
_STAGED: Final = ".whystall-"
_NO_FALLOCATE: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class Over(Enum):
    """Files that writing may replace."""

    NOTHING = "nothing"
    A_FILE = "a file"
    OUR_OWN = "our own"


class OccupiedError(OSError):
    """The place holds something that may not be lost; ``strerror`` names it."""


def obstacle(path: Path, over: Over, is_ours: IsOurs | None = None) -> str | None:
    """The obstacle at a place, as the end of a sentence; ``None`` where the place is free."""
    try:
        is_link = stat.S_ISLNK(path.lstat().st_mode)
    except FileNotFoundError:
        return None
    if is_link and over is Over.OUR_OWN:
        return "is a link"
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # a link to nothing
        return None if over is Over.A_FILE else "exists"
    if not stat.S_ISREG(mode):
        return f"is {kind_of(mode)}"
    if over is Over.NOTHING:
        return "exists"
    return None if is_ours is None or _is_ours(path, is_ours) else "is a file that whystall did not write"


def write(path: Path, fill: Callable[[IO[bytes]], object], *, over: Over, is_ours: IsOurs | None = None) -> None:
    """Writes the output of ``fill`` to ``path``, all of it or nothing.

    ``is_ours`` knows a file of ours by its first bytes: with it no other is replaced. Raises `OccupiedError` where
    something stands at ``path`` that may not be lost, and another `OSError` where it cannot be written.
    """
    _require_free(path, over, is_ours)
    place = path if over is Over.NOTHING else Path(os.path.realpath(path))
    with _staged(place.parent) as (staged, stream):
        with stream:
            fill(stream)
        _require_free(path, over, is_ours)
        if over is Over.NOTHING:
            _take(staged, place)
        else:
            _replace(staged, place)


def _require_free(path: Path, over: Over, is_ours: IsOurs | None) -> None:
    if (why := obstacle(path, over, is_ours)) is not None:
        raise OccupiedError(errno.EEXIST, why, str(path))


def _is_ours(path: Path, is_ours: IsOurs) -> bool:
    with opened(path) as file:
        return is_ours(file.read(HEAD_BYTES))


@contextlib.contextmanager
def _staged(folder: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A new file in ``folder``, which is gone in the end unless it was moved. Its name is as short as any may be."""
    path = folder / f"{_STAGED}{secrets.token_hex(8)}"
    raw = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        yield path, os.fdopen(raw, "wb")
    finally:
        path.unlink(missing_ok=True)


def _take(staged: Path, place: Path) -> None:
    """Gives a file its name, if nothing has it."""
    try:
        os.link(staged, place, follow_symlinks=False)
    except FileExistsError:
        raise OccupiedError(errno.EEXIST, "exists", str(place)) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _take_without_links(staged, place)


def _take_without_links(staged: Path, place: Path) -> None:
    """The same on a file system without hard links: what made the name first has it, and it alone moves there."""
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except FileExistsError:
        raise OccupiedError(errno.EEXIST, "exists", str(place)) from None
    if place.stat().st_size:
        raise OccupiedError(errno.EEXIST, "exists", str(place))
    staged.replace(place)


def _replace(staged: Path, place: Path) -> None:
    """Replaces a regular file; its mode, owner and further names stay."""
    try:
        old = place.lstat()
    except FileNotFoundError:
        try:
            _take(staged, place)
        except OccupiedError:  # it appeared meanwhile
            old = place.lstat()
        else:
            return
    if old.st_nlink > 1 or not _dressed(staged, place, old):
        _pour(staged, place)
    else:
        staged.replace(place)


def _dressed(staged: Path, place: Path, old: os.stat_result) -> bool:
    """Whether the new file could be given the owner, mode and attributes of the old one."""
    try:
        new = staged.stat()
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            os.chown(staged, old.st_uid, old.st_gid)
        staged.chmod(stat.S_IMODE(old.st_mode))
        for name in _attributes(place):
            os.setxattr(staged, name, os.getxattr(place, name))
    except OSError:
        return False
    return True


def _attributes(path: Path) -> list[str]:
    try:
        return os.listxattr(path)
    except OSError:
        return []


def _pour(staged: Path, place: Path) -> None:
    """Writes the new content into the old file itself. Space is reserved first, so that a full disk loses nothing."""
    raw = os.open(place, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(raw, "wb") as target, opened(staged) as source:
        if not stat.S_ISREG(os.fstat(raw).st_mode):
            raise OccupiedError(errno.EEXIST, f"is {kind_of(os.fstat(raw).st_mode)}", str(place))
        old, new = os.fstat(raw).st_size, os.fstat(source.fileno()).st_size
        try:
            os.posix_fallocate(raw, 0, max(new, 1))
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                target.truncate(old)
                raise
        shutil.copyfileobj(source, target)
        target.truncate(new)


def append(path: Path, line: bytes) -> None:
    """Adds a line to a file of ours, which is made where it is missing. Raises `OccupiedError` if it is no file."""
    try:
        raw = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe without a reader
            raise OccupiedError(errno.EEXIST, "is no file", str(path)) from None
        raise
    with os.fdopen(raw, "wb") as file:
        if not stat.S_ISREG(os.fstat(raw).st_mode):
            raise OccupiedError(errno.EEXIST, f"is {kind_of(os.fstat(raw).st_mode)}", str(path))
        file.write(line)
