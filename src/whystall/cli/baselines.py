"""Baselines by name: files of a folder that may be committed, which are read as if a stranger had written them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whystall.cli import output
from whystall.disk import reading
from whystall.disk.writing import Over, obstacle
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from whystall.report.baseline import Baseline

FOLDER: Final = ".whystall/baselines"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MARK: Final = b"whystall.baseline/"
_MOST_NAMED: Final = 8


def add_arguments(parser: ArgumentParser) -> None:
    """Declares how baselines are named."""
    group = parser.add_argument_group("baselines", "a good run kept by name, which later ones are held against")
    either = group.add_mutually_exclusive_group()
    either.add_argument(
        "--save", metavar="NAME", help="keep RUN as a baseline; of several runs of one job also what these differ by"
    )
    either.add_argument("--against", metavar="NAME", help="compare RUN with a baseline (or several runs of one job)")
    group.add_argument("--baselines", metavar="FOLDER", default=FOLDER, help=f"where baselines are ({FOLDER})")


def path_of(name: str, folder: str) -> Path:
    """The file of a baseline. Raises ``UsageError`` for an invalid name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a baseline: use letters, digits, dots, dashes and underscores, at most 64"
        )
    return Path(folder) / f"{name}.json"


def read(name: str, folder: str) -> Baseline:
    """The baseline of a name. Raises ``InputError`` where there is none that can be read."""
    from whystall.report.baseline import LARGEST_BYTES, decode_baseline

    path = path_of(name, folder)
    if not path.is_file():
        raise InputError(f"no baseline is called {name!r} in {folder}: {_others(Path(folder), name)}")
    try:
        with reading.opened(path) as stream:
            data = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > LARGEST_BYTES:
        raise InputError(f"{path} is larger than any baseline ({LARGEST_BYTES >> 20} MiB): it is not read")
    try:
        return decode_baseline(data)
    except ValueError as error:
        raise InputError(f"{path} is no baseline that this whystall can read: {error}") from None


def check_free(path: Path, *, force: bool) -> None:
    """Raises ``UsageError`` where a baseline would overwrite something: with ``force`` only another baseline is."""
    if not force and (path.is_symlink() or path.exists()):
        raise UsageError(f"{path} exists: add --force to replace it, or choose another name")
    try:
        taken = obstacle(path, Over.OUR_OWN, _is_baseline) is not None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be replaced: {error}") from None
    if taken:
        raise UsageError(f"{path} exists: it is no baseline: choose another name")


def write(path: Path, baseline: Baseline, *, force: bool) -> None:
    """Writes a baseline atomically, and makes its folder."""
    from whystall.report.baseline import encode_baseline

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    data = encode_baseline(baseline)
    over = Over.OUR_OWN if force else Over.NOTHING
    output.place(path, lambda stream: stream.write(data), over=over, is_ours=_is_baseline)


def _is_baseline(head: bytes) -> bool:
    return _MARK in head


def _others(folder: Path, name: str) -> str:
    known = sorted(path.stem for path in folder.glob("*.json") if _NAME.fullmatch(path.stem)) if folder.is_dir() else []
    make = f"`whystall compare --save {name} RUN` makes it"
    return f"there {'are' if len(known) > 1 else 'is'} {', '.join(known[:_MOST_NAMED])}; {make}" if known else make
