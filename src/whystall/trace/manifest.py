"""``ranks.json``: maps recordings to ranks, where recordings and their names lack the rank, or state it wrongly.

The file comes from outside and is not trusted. It is small, its fields have types, and it names files below its own
folder alone. A name in it opens no file: it only labels recordings that were found otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from whystall.json_text import NotJsonError, parse_json
from whystall.trace.discovery import RANKS_JSON, find_manifests
from whystall.trace.errors import InputError
from whystall.trace.files import Limits, contents
from whystall.trace.metadata import MOST_RANKS
from whystall.trace.model import Trace
from whystall.trace.ranks import rank_in_name

SCHEMA: Final = "whystall.ranks/1"
MOST_BYTES: Final = 16 << 20
"""A hundred thousand recordings take some 8 MB."""
_MOST_NAMES: Final = 4
_LONGEST: Final = 200
_CONTRADICTED: Final = f"its rank is the one that {RANKS_JSON} gives it, not the one that it or its name states"

_Size = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
_Host = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class _Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
    host: _Host | None = None


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal["whystall.ranks/1"]
    recordings: list[_Recording]
    world_size: _Size | None = None


class Stated(msgspec.Struct, frozen=True, order=True):
    """A manifest's entry for a recording: its rank, the world size, and the number of its host.

    Hosts are numbered by their lowest ranks: their names are not kept.
    """

    rank: int
    world_size: int | None = None
    host: int | None = None


class Document(NamedTuple):
    """A manifest as found: its name, the folder below which its recordings lie, and its content."""

    name: str
    folder: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """The entries of all manifests, by a recording's place (`place_of`; for an address, as shown)."""

    stated: Mapping[str, Stated]

    def of(self, places: Iterable[str]) -> Stated | None:
        """The entry for the recording that is in files at these places."""
        return next((self.stated[place] for place in places if place in self.stated), None)

    def missing(self, places: Collection[str]) -> list[str]:
        """The sentence on recordings that are named and are not among those at these places."""
        gone = sorted(place for place in self.stated if place not in places)
        if not gone:
            return []
        names = ", ".join(PurePosixPath(place).name for place in gone[:_MOST_NAMES])
        more = f" and {len(gone) - _MOST_NAMES:,} more" if len(gone) > _MOST_NAMES else ""
        files = "1 file that is" if len(gone) == 1 else f"{len(gone):,} files that are"
        return [f"{RANKS_JSON} names {files} not among the recordings here: {names}{more}"]


def place_of(path: Path) -> str:
    """How a manifest's entry for a file is found again, however the file was named."""
    return path.absolute().as_posix()


def read_manifest(sources: Iterable[object]) -> Manifest:
    """The manifests among paths, folders and patterns. Raises `InputError` where one cannot be read."""
    return manifest_of(local_documents(sources))


def local_documents(sources: Iterable[object]) -> list[Document]:
    """The manifests among paths, folders and patterns, each once. Raises `InputError` where one cannot be opened."""
    named = [path for source in sources if isinstance(source, str | Path) for path in find_manifests(source)]
    found = {place_of(path): path for path in named}
    return [
        Document(str(path), place_of(path.parent), contents(path, MOST_BYTES, Limits(), None)[0])
        for _, path in sorted(found.items())
    ]


def manifest_of(documents: Iterable[Document]) -> Manifest:
    """Several manifests as one.

    Raises `InputError` for an invalid one, and where two entries for one recording differ.
    """
    found: dict[str, tuple[int, int | None, str | None]] = {}
    for document in documents:
        content = _decoded(document)
        for one in content.recordings:
            if content.world_size is not None and one.rank >= content.world_size:
                raise InputError(f"{document.name}: {_plain(one.file)} is rank {one.rank} of {content.world_size}")
            said = (one.rank, content.world_size, one.host)
            if found.setdefault(_place(document, one.file), said) != said:
                raise InputError(f"{document.name}: two things are said of {_plain(one.file)}")
    hosts: dict[str, int] = {}
    for _, host in sorted((rank, host) for rank, _, host in found.values() if host is not None):
        hosts.setdefault(host, len(hosts))
    return Manifest(
        {place: Stated(rank, size, hosts[host] if host else None) for place, (rank, size, host) in found.items()}
    )


def _decoded(document: Document) -> _Content:
    reason: object = f"it holds more than {MOST_BYTES:,} bytes"
    if len(document.content) <= MOST_BYTES:
        try:
            return parse_json(document.content, type=_Content)
        except NotJsonError as error:
            reason = error
    raise InputError(f"{document.name}: no list of ranks ({_plain(str(reason))}): mend it, or give it another name")


def _place(document: Document, file: str) -> str:
    """Where a recording lies that is named from the manifest's folder. Raises `InputError` for one outside of it."""
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in file:
        raise InputError(f"{document.name}: {_plain(file)} does not lie below its folder")
    return f"{document.folder.rstrip('/')}/{path}"


def _plain(text: str) -> str:
    """A text of a stranger's as an error may show it."""
    return ascii(text[:_LONGEST])[1:-1]


def as_stated(traces: Sequence[Trace], stated: Stated | None, failures: list[str]) -> list[Trace]:
    """The traces of one file, with its manifest entry; a file with several traces cannot have one."""
    if stated is None or not traces:
        return list(traces)
    if len(traces) > 1:
        failures.append(
            f"{traces[0].name} holds the recordings of {len(traces)} processes: of which rank each is, "
            f"{RANKS_JSON} cannot say"
        )
        return list(traces)
    return [_of_rank(traces[0], stated)]


def _of_rank(trace: Trace, stated: Stated) -> Trace:
    own = trace.rank if trace.rank is not None else rank_in_name(trace.name)
    source = trace.source
    if own is not None and own != stated.rank:
        source = dataclasses.replace(source, warnings=(*source.warnings, _CONTRADICTED))
    size = stated.world_size if stated.world_size is not None else trace.metadata.world_size
    metadata = msgspec.structs.replace(trace.metadata, rank=stated.rank, world_size=size, host=stated.host)
    return dataclasses.replace(trace, source=source, metadata=metadata)
