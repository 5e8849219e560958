"""The folders that a client may look into, and nothing beside them: every requested path is resolved first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from whystall.errors import InputError, UsageError

_MOST_ENTRIES: Final = 20_000
_LONGEST_PATH: Final = 1_000


class Folders:
    """The given folders, resolved once; a path is inside one of them when its resolved form is."""

    def __init__(self, given: Sequence[str | Path]) -> None:
        self.roots: list[Path] = []
        for folder in map(Path, given):
            if not folder.is_dir():
                raise UsageError(f"{folder} is no folder: name the folders whose runs may be asked for")
            resolved = folder.resolve()
            if resolved not in self.roots:
                self.roots.append(resolved)

    def find(self, path: str) -> Path:
        """The file or folder that a client names, absolute or relative to one of the folders.

        Raises `InputError` for a path that is missing or lies outside, also by way of a link.
        """
        if not path or len(path) > _LONGEST_PATH or "\0" in path:
            raise InputError("the path is empty, too long, or holds a null character")
        asked = Path(path)
        for root in self.roots:
            found = self._resolved(asked if asked.is_absolute() else root / asked)
            if found is not None:
                self._check_links(found)
                return found
        # One sentence for both, so that a client cannot learn which files lie outside.
        raise InputError(f"{_shown(path)}: no such file or folder in the folders that this server was given")

    def _resolved(self, path: Path) -> Path | None:
        try:
            resolved = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # not there, a loop of links, no valid name
            return None
        regular = resolved.is_file() or resolved.is_dir()  # of a pipe or a device, reading may never end
        return resolved if regular and self._is_inside(resolved) else None

    def _is_inside(self, resolved: Path) -> bool:
        return any(resolved.is_relative_to(root) for root in self.roots)

    def _check_links(self, found: Path) -> None:
        """Refuses a folder that holds a link to the outside: reading the folder would follow it."""
        if not found.is_dir():
            return
        for entry in walk(found):
            if entry.is_symlink() and self._resolved(entry) is None:
                raise InputError(
                    f"{self.shown(entry)} is a link that leads out of the folders given: it is not followed"
                )

    def shown(self, path: Path) -> str:
        """A path as a client names it: relative to its folder where there is only one."""
        if len(self.roots) == 1 and path.is_relative_to(self.roots[0]):
            return path.relative_to(self.roots[0]).as_posix()
        return path.as_posix()


def walk(folder: Path) -> Iterator[Path]:
    """Every file and link below a folder by name, links to folders not entered. Raises `InputError` for too many."""
    count = 0
    for parent, folders, files in os.walk(folder, followlinks=False):
        folders.sort()
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted([*files, *links]):
            count += 1
            if count > _MOST_ENTRIES:
                raise InputError(
                    f"the folder holds more than {_MOST_ENTRIES:,} files: name one of them, or a smaller folder"
                )
            yield Path(parent, name)


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:200]}…")
