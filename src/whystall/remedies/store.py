"""The folder of ``whystall fix``: its attempts (``fixes.jsonl``), the patch, and the lock that one loop holds."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final

import msgspec

from whystall.disk import reading, writing
from whystall.disk.writing import Over
from whystall.errors import InputError, UsageError
from whystall.json_text import NotJsonError, parse_json
from whystall.remedies.copies import Workplace, is_text
from whystall.remedies.program import Program
from whystall.remedies.results import Attempt, Fixes
from whystall.run_folder.layout import FIX_ATTEMPTS, FIX_JSON, FIX_MD, FIX_PATCH

_LARGEST_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Store:
    """The files of one program's loops."""

    folder: Path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the folder: a second loop is refused. Raises `UsageError` for a folder that cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / FIX_ATTEMPTS).exists() and any(self.folder.iterdir()):
                raise UsageError(f"{self.folder} holds other files: name another folder with -o")
            lock = os.open(self.folder / FIX_ATTEMPTS, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UsageError(
                f"{self.folder} cannot be written ({error.strerror}): name another folder with -o"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise UsageError(
                f"another whystall fix works in {self.folder}: wait for it, or name another folder with -o"
            ) from None
        try:
            yield
        finally:
            os.close(lock)

    def attempts(self) -> list[Attempt]:
        """The attempts of earlier loops; damaged lines are left out."""
        found = []
        try:
            lines = reading.content(self.folder / FIX_ATTEMPTS, _LARGEST_BYTES).splitlines()
        except OSError:
            return []
        for line in lines:
            try:
                found.append(parse_json(line, type=Attempt))
            except NotJsonError:
                continue
        return found

    def keep(self, attempt: Attempt) -> None:
        """Adds an attempt. The command's arguments may be secret: no file holds them."""
        told = msgspec.structs.replace(attempt, command=[])
        writing.append(self.folder / FIX_ATTEMPTS, msgspec.json.encode(told) + b"\n")

    def end(self, found: Fixes, patch: bytes, text: str) -> Path | None:
        """Writes the result; where edits were kept also the patch and ``text``, a pull request's. Returns its path.

        Without any an older patch stays.
        """
        attempts = [msgspec.structs.replace(one, command=[]) for one in found.attempts]
        told = msgspec.structs.replace(found, attempts=attempts, command=[])
        body = msgspec.json.format(msgspec.json.encode(told), indent=1)
        writing.write(self.folder / FIX_JSON, lambda stream: stream.write(body), over=Over.OUR_OWN)
        if not patch:
            return None
        words, path = self.folder / FIX_MD, self.folder / FIX_PATCH
        writing.write(words, lambda stream: stream.write(text.encode("utf-8", "replace")), over=Over.OUR_OWN)
        writing.write(path, lambda stream: stream.write(patch), over=Over.OUR_OWN)
        return path


def patched(place: Workplace, program: Program, text: bytes, name: str) -> Program:
    """The program with a patch made, which messages call ``name``. Raises `InputError` where it does not apply.

    Also for changes that no copy can hold: of files other than Python and settings, of links, and deletions.
    """
    with tempfile.TemporaryDirectory(prefix="whystall-patch-") as folder:
        copy = Path(folder) / "program"
        place.make(copy, {})
        before = _held(copy)
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": folder, "GIT_DIR": os.devnull}
        try:
            done = subprocess.run(command, cwd=copy, input=text, capture_output=True, check=False, env=environment)  # noqa: S603
        except FileNotFoundError:
            raise InputError("git is needed to apply a patch, and is not installed") from None
        if done.returncode != 0:
            why = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise InputError(f"{name} does not apply to the program: {why[0] if why else 'unknown'}")
        after = _held(copy)
        changed = sorted(file for file in before.keys() | after.keys() if before.get(file) != after.get(file))
        for file in changed:
            path = copy / file
            if path.is_symlink() or not path.is_file() or not is_text(path) or place.is_linked(file):
                raise InputError(
                    f"{name} changes {file}: only files of Python and settings (.yaml, .json) can be judged"
                )
            program = program.with_file(file, path.read_bytes())
    if not changed:
        raise InputError(f"{name} changes nothing")
    return program


def _held(folder: Path) -> dict[str, tuple[int, int, int]]:
    """The state of all files below a folder, links as they are."""
    found = {}
    for below, folders, names in os.walk(folder):
        for name in (*names, *(one for one in folders if (Path(below) / one).is_symlink())):
            stat = (Path(below) / name).lstat()
            found[os.path.relpath(Path(below) / name, folder)] = (stat.st_mtime_ns, stat.st_ino, stat.st_mode)
    return found


def apply(place: Workplace, before: Program, after: dict[str, bytes]) -> None:
    """Writes changed files into the user's tree. Raises `UsageError` where one has changed meanwhile."""
    for name in after:
        path = place.root / name
        if place.is_linked(name):
            raise UsageError(f"{path} lies behind a link: nothing is applied, the patch is kept")
        try:
            same = path.read_bytes() == before.files[name] if name in before.files else not path.exists()
        except OSError:
            same = False
        if not same:
            raise UsageError(f"{path} has changed meanwhile: nothing is applied, the patch is kept")
        if path.exists() and not os.access(path, os.W_OK):
            raise UsageError(f"{path} may not be written: nothing is applied, the patch is kept")
    for name, data in after.items():
        path = place.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            writing.write(path, partial(_fill, data), over=Over.A_FILE)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _fill(data: bytes, stream: IO[bytes]) -> None:
    stream.write(data)
