"""Files that only this user could have written: caches, and records. Other files are not trusted, nor are links."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_OTHERS_WRITE: Final = 0o022


def is_ours(path: Path) -> bool:
    """Whether only this user could have written a file or a folder, and it is no link.

    Raises `OSError` where there is none.
    """
    found = path.lstat()
    is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return is_plain and found.st_uid == os.getuid() and not found.st_mode & _OTHERS_WRITE


def is_own_file(path: Path) -> bool:
    """Whether a file is this user's and no link. Its folder decides about write access.

    Raises `OSError` where there is none.
    """
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()


def make_private(folder: Path, *, below: Path | None = None) -> None:
    """Makes a folder that this user alone reads and writes, or sees that an existing one is.

    ``below`` is our folder around it, which is checked first. Raises `PermissionError` where it is another user's, or
    others may write to it.
    """
    if below is not None:
        make_private(below)
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (why := foreign(folder)) is not None:
        raise PermissionError(1, why, str(folder))


def foreign(folder: Path) -> str | None:
    """Why a folder is not one to keep things in, as the end of a sentence; ``None`` where it is this user's alone.

    The user's own link to it is followed: caches lie on other disks. Raises `OSError` where there is none.
    """
    me = os.getuid()
    if folder.lstat().st_uid != me or folder.stat().st_uid != me:
        return "it is another user's"
    if folder.stat().st_mode & _OTHERS_WRITE:
        return f"others may write to it: `chmod go-w {folder}`"
    return None
