"""A copy of the folder that a program works in, so that neither an edit nor a run of it changes the user's files.

Text and small files are copied; large ones, those beyond a few thousand, and environments of packages are linked. The
copy is made again before each run: what a run left there (a checkpoint to go on from) must not change the next.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from whystall.errors import InputError, UsageError
from whystall.remedies.program import SETTINGS, Program
from whystall.remedies.source import LARGEST

_NEVER: Final = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "whystall-runs", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
)
_LINKED: Final = frozenset({"node_modules", "site-packages"})
TEXT: Final = (".py", *SETTINGS)
_LARGEST: Final = 8 << 20
_MOST_BYTES: Final = 512 << 20
_MOST_COPIED: Final = 2_000
_MOST_FILES: Final = 200_000


@dataclass
class Workplace:
    """The folder ``root`` as it was found: what is copied, what is linked, and the state of what links lead to."""

    root: Path
    below: Path
    """The folder in which the command runs, below the root."""
    folders: list[str] = field(default_factory=list)
    copied: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """The targets of the copy's links, by their names."""
    stamps: dict[str, tuple[int, int]] = field(default_factory=dict)

    def texts(self) -> dict[str, bytes]:
        """The program's text: Python files, and files of settings. A patch can name none with a line feed or a tab."""
        found = {}
        for name, path in self.copied.items():
            if is_text(path) and not {"\n", "\t"} & set(name):
                found[name] = path.read_bytes()
        return found

    def make(self, place: Path, changed: Mapping[str, bytes]) -> Path:
        """Makes the copy at ``place``, with changed files, over an older one; returns the folder of the command.

        Raises `UsageError` for a changed file that a link leads to.
        """
        through = next((name for name in changed if self.is_linked(name)), None)
        if through is not None:
            raise UsageError(f"{through} lies behind a link, and is not changed")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        for name in self.folders:
            (place / name).mkdir(exist_ok=True)
        for name, path in self.copied.items():
            if name not in changed:
                shutil.copy2(path, place / name)
        for name, data in changed.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            if name in self.copied:
                shutil.copymode(self.copied[name], path)
        for name, target in self.links.items():
            inside = Path(target).is_absolute() and Path(target).is_relative_to(self.root) and name not in self.stamps
            (place / name).symlink_to(place / Path(target).relative_to(self.root) if inside else target)
        return place / self.below

    def is_linked(self, name: str) -> bool:
        """Whether a file is a link of the copy, or lies in a linked folder."""
        return any(str(one) in self.links for one in (Path(name), *Path(name).parents))

    def touched(self) -> str | None:
        """A file or folder that a link leads to and that has changed since; ``None`` where none has."""
        for name, stamp in self.stamps.items():
            if _stamp(self.root / name) != stamp:
                return name
        return None

    def left(self, place: Path) -> Counter[str]:
        """The files that a run left in the copy, counted by their endings."""
        known = {*self.copied, *self.links}
        paths = (Path(folder) / name for folder, _, names in os.walk(place) for name in names)
        new = (path for path in paths if str(path.relative_to(place)) not in known and "__pycache__" not in path.parts)
        return Counter(path.suffix for path in new)


def is_text(path: Path) -> bool:
    """Whether a file is one of Python or of settings that can be edited."""
    return path.name.endswith(TEXT) and path.stat().st_size <= LARGEST


def workplace(folder: Path) -> Workplace:
    """The workplace of a command that is run in ``folder``: its git repository, or the folder itself.

    Raises `UsageError` for a folder that is no program's, and `InputError` where a file cannot be read.
    """
    folder = folder.resolve()
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    if root == Path(root.anchor) or root == Path.home().resolve():
        raise UsageError(f"{root} holds more than a program: run it in a folder of its own")
    found = Workplace(root, folder.relative_to(root))
    size = 0
    for name, entry in _entries(root):
        if len(found.folders) + len(found.copied) + len(found.links) > _MOST_FILES:
            raise UsageError(f"{root} holds more than {_MOST_FILES:,} files: run the program in a folder of its own")
        size += _taken(found, name, entry, room=_MOST_BYTES - size)
    return found


def _taken(found: Workplace, name: str, entry: os.DirEntry[str], *, room: int) -> int:
    """Takes an entry into a workplace, in whose copy there is ``room``; the bytes that are copied."""
    mode, path = entry.stat(follow_symlinks=False).st_mode, Path(entry.path)
    if stat.S_ISLNK(mode):
        found.links[name] = _target(found.root, path)
        if not Path(os.path.realpath(path)).is_relative_to(found.root):
            found.stamps[name] = _stamp(path)
    elif stat.S_ISDIR(mode) and not _is_linked(path):
        found.folders.append(name)
    elif stat.S_ISREG(mode) and _is_copied(found, entry, room):
        found.copied[name] = path
        return entry.stat().st_size
    elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        found.links[name] = entry.path
        found.stamps[name] = _stamp(path)
    return 0


def _is_copied(found: Workplace, entry: os.DirEntry[str], room: int) -> bool:
    """Whether a file is copied, and not linked. Raises `InputError` for one that cannot be read."""
    if not os.access(entry.path, os.R_OK):
        raise InputError(f"{entry.path}: permission denied")
    return is_text(Path(entry.path)) or (
        entry.stat().st_size <= min(_LARGEST, room) and len(found.copied) < _MOST_COPIED
    )


def _entries(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below, folders before their content."""
    waiting = [root]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                if entry.name in _NEVER:
                    continue
                yield os.path.relpath(entry.path, root), entry
                if entry.is_dir(follow_symlinks=False) and not _is_linked(Path(entry.path)):
                    waiting.append(Path(entry.path))


def _is_linked(folder: Path) -> bool:
    """Whether a folder is one of packages."""
    return folder.name in _LINKED or (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").exists()


def _target(root: Path, link: Path) -> str:
    """The target of a link of the copy: the copy's own file for a link within the program."""
    text = str(link.readlink())
    inside = not Path(text).is_absolute() and (link.parent / text).resolve().is_relative_to(root)
    return text if inside else str(link.parent / text)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, -1)
    return (found.st_mtime_ns, found.st_size)


def moved(command: Sequence[str], root: Path, place: Path) -> tuple[str, ...]:
    """The command with the program's absolute paths in the copy; an interpreter in a folder of packages stays."""
    first, *rest = command
    inside = Path(first).is_absolute() and not any(_is_linked(one) for one in Path(first).parents if one != root)
    return (_moved(first, root, place) if inside else first, *(_moved(word, root, place) for word in rest))


def _moved(word: str, root: Path, place: Path) -> str:
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(value)
    if not path.is_absolute():
        return word
    real = Path(os.path.realpath(path.parent)) / path.name
    if real.is_relative_to(root):
        return f"{option}{equals}{place / real.relative_to(root)}"
    return word


def import_path(python: str, root: Path) -> list[str]:
    """Folders of the program that its Python imports from, below the root (of packages installed for development)."""
    asked = "import sys; print('\\n'.join(sys.path[1:]))"
    try:
        told = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = [Path(line).resolve() for line in told.stdout.splitlines() if line]
    return [
        os.path.relpath(one, root)
        for one in found
        if one.is_relative_to(root) and "site-packages" not in one.parts and one.is_dir()
    ]


def program_of(place: Workplace, command: Sequence[str]) -> Program:
    """The program in a workplace."""
    return Program(place.texts(), tuple(command), below=str(place.below))
