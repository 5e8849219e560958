"""From what the user names to the files to summarise, wherever they lie, in an order that does not depend on theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from whystall.errors import InputError
from whystall.fleet.engines.machine import free_bytes, needed_bytes
from whystall.fleet.remote import find_remote, is_address, name_of
from whystall.trace.discovery import PathLike
from whystall.trace.model import Trace
from whystall.trace.ranks import rank_in_name
from whystall.trace.readers.reader import Whole
from whystall.trace.readers.registry import installed_readers
from whystall.trace.recordings import trace_files
from whystall.trace.together import each_once, whole_of

FEW_RANKS: Final = 16
"""Up to so many ranks are analysed all together, each in full."""
# Recordings pack 10 to 60 times; of one that says nothing of its size this is taken.
_USUAL_PACKING: Final = 16
_GZIP_MAGIC: Final = b"\x1f\x8b"


class RecordedFile(msgspec.Struct, frozen=True, order=True):
    """A file: its base name, its path or address, its size packed and unpacked, and what changes with its content."""

    name: str
    address: str
    bytes: int
    raw_bytes: int
    mark: str

    @property
    def is_remote(self) -> bool:
        """Whether it lies at an address and has to be fetched."""
        return is_address(self.address)


def find_files(given: Sequence[PathLike | Trace], failures: list[str]) -> list[RecordedFile]:
    """The files that paths, folders, patterns and addresses name, by name; on what names none a sentence."""
    readers, _ = installed_readers()
    found: list[RecordedFile] = []
    told: set[Path] = set()
    for source in given:
        if isinstance(source, str) and is_address(source):
            try:
                found += [
                    _file(one.address, one.bytes or 0, one.mark, packed=one.address.endswith(".gz"))
                    for one in find_remote(source, readers)
                ]
            except InputError as error:
                failures.append(str(error))
        elif not isinstance(source, Trace):
            paths = each_once(trace_files(source, readers, failures), readers, told)
            found += [_local(whole_of(path, readers)) for path in paths]
    return sorted(found)


def are_many(files: Sequence[RecordedFile]) -> bool:
    """Whether the files are of more ranks than are analysed together, or too large for it."""
    ranks = {rank if (rank := rank_in_name(file.name)) is not None else file.address for file in files}
    whole = needed_bytes(sum(file.raw_bytes for file in files))
    return len(ranks) > FEW_RANKS or (len(files) > 1 and whole > free_bytes())


def _local(whole: Whole) -> RecordedFile:
    path = whole.files[0]
    try:
        status = [file.stat() for file in whole.files]
        with path.open("rb") as file:
            packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            if packed:
                file.seek(-4, 2)
            told = int.from_bytes(file.read(4), "little") if packed else 0
    except OSError:  # whoever reads it says why it cannot be read
        return _file(str(path.absolute()), 0, "", packed=False)
    mark = " ".join(f"{one.st_size}/{one.st_mtime_ns}/{one.st_ino}" for one in status)
    size = sum(one.st_size for one in status)
    found = _file(str(path.absolute()), size, mark, packed=packed and len(status) == 1, told=told)
    return msgspec.structs.replace(found, name=whole.name)


def _file(address: str, size: int, mark: str, *, packed: bool, told: int = 0) -> RecordedFile:
    """A packed file ends with the size of what it holds, up to 4 GiB and where it was packed in one go."""
    raw = told if told >= size else size * _USUAL_PACKING
    return RecordedFile(name_of(address), address, size, raw if packed else size, mark)
