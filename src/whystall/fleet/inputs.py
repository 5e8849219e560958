"""Turns the user's inputs into the files to summarise, from any location, in an order independent of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from whystall.disk import reading
from whystall.errors import InputError
from whystall.fleet.engines.machine import free_bytes, needed_bytes
from whystall.fleet.remote import RemoteFile, beginning, find_remote, is_address, name_of, shown
from whystall.trace.discovery import RANKS_JSON, PathLike
from whystall.trace.manifest import MOST_BYTES, Document, Stated, local_documents, manifest_of, place_of
from whystall.trace.model import Trace
from whystall.trace.ranks import rank_in_name
from whystall.trace.readers.reader import Reader, Whole
from whystall.trace.readers.registry import installed_readers
from whystall.trace.recordings import trace_files
from whystall.trace.together import each_once, whole_of

FEW_RANKS: Final = 16
"""Up to this many ranks are analysed all together, each in full."""
# Recordings pack 10 to 60 times; this is assumed for one of unknown size.
_USUAL_PACKING: Final = 16
_GZIP_MAGIC: Final = b"\x1f\x8b"


class RecordedFile(msgspec.Struct, frozen=True):
    """A file: its base name, its path or address, its sizes packed and unpacked, and a mark of its content.

    ``stated`` is its entry in a list of ranks.
    """

    name: str
    address: str
    bytes: int
    raw_bytes: int
    mark: str
    stated: Stated | None = None

    @property
    def is_remote(self) -> bool:
        """Whether it lies at an address and has to be fetched."""
        return is_address(self.address)


def find_files(given: Sequence[PathLike | Trace], failures: list[str]) -> list[RecordedFile]:
    """The files behind paths, folders, patterns and addresses, by name; a sentence on those that match none.

    Raises `InputError` for a list of ranks among them that cannot be read: without it ranks would be others.
    """
    readers, _ = installed_readers()
    told: set[Path] = set()
    paths = [source for source in given if not isinstance(source, Trace) and not is_address(source)]
    found = [path for source in paths for path in each_once(trace_files(source, readers, failures), readers, told)]
    local = [whole_of(path, readers) for path in found]
    there = [one for source in given if is_address(source) for one in _remote(str(source), readers, failures)]
    lists = [one for one in there if name_of(one.address) == RANKS_JSON]
    remote = [one for one in there if name_of(one.address) != RANKS_JSON]
    manifest = manifest_of([*local_documents(paths), *map(_document, lists)])
    failures += manifest.missing(
        {*(place_of(path) for whole in local for path in whole.files), *(shown(one.address) for one in remote)}
    )
    files = [_local(whole, manifest.of(map(place_of, whole.files))) for whole in local]
    for one in remote:
        file = _file(one.address, one.bytes or 0, one.mark, packed=one.address.endswith(".gz"))
        files.append(msgspec.structs.replace(file, stated=manifest.of([shown(one.address)])))
    return sorted(files, key=lambda file: (file.name, file.address))


def are_many(files: Sequence[RecordedFile]) -> bool:
    """Whether the files hold more ranks than are analysed together, or are too large for it."""
    ranks = {file.address if (rank := _rank_of(file)) is None else rank for file in files}
    whole = needed_bytes(sum(file.raw_bytes for file in files))
    return len(ranks) > FEW_RANKS or (len(files) > 1 and whole > free_bytes())


def _rank_of(file: RecordedFile) -> int | None:
    """The rank that is known of a file without opening it."""
    return file.stated.rank if file.stated is not None else rank_in_name(file.name)


def _remote(address: str, readers: Sequence[Reader], failures: list[str]) -> list[RemoteFile]:
    try:
        return find_remote(address, readers)
    except InputError as error:
        failures.append(str(error))
        return []


def _document(file: RemoteFile) -> Document:
    """A list of ranks at an address; one byte more than it may have shows that it is too large."""
    address = shown(file.address)
    return Document(address, address.rpartition("/")[0], beginning(file.address, MOST_BYTES + 1))


def _local(whole: Whole, stated: Stated | None) -> RecordedFile:
    path = whole.files[0]
    try:
        status = [file.stat() for file in whole.files]
        with reading.opened(path) as file:
            packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            if packed:
                file.seek(-4, 2)
            told = int.from_bytes(file.read(4), "little") if packed else 0
    except OSError:  # reading the file reports why it fails
        return msgspec.structs.replace(_file(str(path.absolute()), 0, "", packed=False), stated=stated)
    mark = " ".join(f"{one.st_size}/{one.st_mtime_ns}/{one.st_ctime_ns}/{one.st_ino}" for one in status)
    size = sum(one.st_size for one in status)
    found = _file(str(path.absolute()), size, mark, packed=packed and len(status) == 1, told=told)
    return msgspec.structs.replace(found, name=whole.name, stated=stated)


def _file(address: str, size: int, mark: str, *, packed: bool, told: int = 0) -> RecordedFile:
    """A packed file ends with its unpacked size, up to 4 GiB and where it was packed in one go."""
    raw = told if told >= size else size * _USUAL_PACKING
    return RecordedFile(name_of(address), address, size, raw if packed else size, mark)
