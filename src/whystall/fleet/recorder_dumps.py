"""Dumps of PyTorch's flight recorder: the last collectives of a rank, recognised by their fields.

The layout has grown since version 2.4 (torch 2.5) and may grow further; missing fields are None, never made up. JSON
differs from pickle: it holds no stacks, writes 0 for unknown times and some numbers as strings, and leaves out
``entries`` where there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from whystall.errors import InputError
from whystall.fleet import plain_pickle
from whystall.json_text import NotJsonError, parse_json
from whystall.vocabulary.frames import Frame, owner

__all__ = ["Dump", "Entry", "Group", "read_dump"]

_MOST_ENTRIES: Final = 1_000_000  # the ring holds 2,000 by default
_MOST_FRAMES: Final = 512
_MOST_SIZES: Final = 4096  # tensors of one collective, and dimensions of one tensor
_KEYS: Final = frozenset({"version", "entries", "pg_config", "pg_status"})
_DEFAULT_GROUP: Final = "default_pg"


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """A process group: its name and its description, as the job gave them."""

    name: str
    description: str

    @property
    def is_default(self) -> bool:
        """Whether it is the group of all ranks."""
        return self.description == _DEFAULT_GROUP or not self.name


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of a rank. Times are nanoseconds of the host's clock, sizes elements."""

    record: int
    group: Group
    library: str
    operation: str
    is_p2p: bool
    sequence: int
    """The number of the operation in its group; operations that were coalesced share one."""
    input_sizes: tuple[tuple[int, ...], ...]
    input_types: tuple[str, ...]
    state: str
    retired: bool
    created_ns: int | None
    place: Frame | None
    """The innermost line of the user's own code, else a library's; None where the dump holds no stacks."""


@dataclass(frozen=True, slots=True)
class Dump:
    """The content of one rank's recorder."""

    version: str
    entries: tuple[Entry, ...]
    """In the order of their calls."""
    members: Mapping[str, tuple[int, ...]]
    """The ranks of each process group by its name, as far as the dump lists them."""
    skipped: int
    """Entries that could not be read."""

    @property
    def complete(self) -> bool:
        """Whether the ring still holds the first operation that was recorded."""
        return bool(self.entries) and self.entries[0].record == 0

    @property
    def is_blank(self) -> bool:
        """Whether it knows neither an operation nor a group, as that of a recorder that is off."""
        return not (self.entries or self.members or self.skipped)


def read_dump(data: bytes) -> Dump:
    """The dump in a file's bytes.

    Raises ``InputError`` with the reason: no dump, damaged, or a pickle that would run something.
    """
    if data[:1] == b"\x80":
        body = plain_pickle.loads(data)
    else:
        try:
            body = parse_json(data)
        except NotJsonError as error:
            raise InputError(f"it is neither a pickle nor JSON: {error}") from error
    if not isinstance(body, dict) or len(_KEYS & body.keys()) < 2:
        raise InputError("it is no dump of PyTorch's flight recorder: none of its fields are there")
    found = body.get("entries")
    raw = found if isinstance(found, list) else []
    if len(raw) > _MOST_ENTRIES:
        raise InputError(f"it holds {len(raw):,} entries, more than {_MOST_ENTRIES:,}")
    entries = [entry for one in raw if (entry := _entry(one)) is not None]
    entries.sort(key=lambda one: one.record)
    return Dump(
        version=_text(body.get("version")) or "unknown",
        entries=tuple(entries),
        members=dict(_members(body.get("pg_config"))),
        skipped=len(raw) - len(entries),
    )


def _members(raw: object) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The groups that a dump describes, with ranks; torch writes these as the text of a list."""
    for name, described in raw.items() if isinstance(raw, dict) else ():
        told = described.get("ranks") if isinstance(described, dict) else None
        numbers = told if isinstance(told, list) else re.findall(r"\d{1,9}", _text(told))
        ranks = tuple(sorted({rank for one in numbers if (rank := _number(one)) is not None and rank >= 0}))
        if ranks:
            yield _text(name), ranks


def _entry(raw: object) -> Entry | None:
    """One entry, or None where it lacks a field that every version writes."""
    if not isinstance(raw, dict):
        return None
    record, name = _number(raw.get("record_id")), _text(raw.get("profiling_name"))
    is_p2p = raw.get("is_p2p") is True
    sequence = _number(raw.get("p2p_seq_id" if is_p2p else "collective_seq_id"))
    if sequence is None:
        sequence = _number(raw.get("seq_id"))  # dumps of before 2.0
    group = raw.get("process_group")
    named = [_text(part) for part in group[:2]] if isinstance(group, list | tuple) else []
    if record is None or sequence is None or not name:
        return None
    library, _, operation = name.rpartition(":")
    return Entry(
        record=record,
        group=Group(*named) if len(named) == 2 else Group(_text(raw.get("pg_id")), ""),
        library=library,
        operation=operation,
        is_p2p=is_p2p,
        sequence=sequence,
        input_sizes=_sizes(raw.get("input_sizes")),
        input_types=_types(raw.get("input_dtypes")),
        state=_text(raw.get("state")),
        retired=raw.get("retired") is True,
        created_ns=_number(raw.get("time_created_ns")) or None,
        place=_place(raw.get("frames")),
    )


def _number(value: object) -> int | None:
    """A whole number, also where it is written as text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else None
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII) else None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else ""


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    tensors = value[:_MOST_SIZES] if isinstance(value, list | tuple) else ()
    return tuple(
        tuple(number for one in tensor[:_MOST_SIZES] if (number := _number(one)) is not None)
        for tensor in tensors
        if isinstance(tensor, list | tuple)
    )


def _types(value: object) -> tuple[str, ...]:
    return tuple(_text(one) for one in value[:_MOST_SIZES]) if isinstance(value, list | tuple) else ()


def _place(value: object) -> Frame | None:
    """The user's frame of the call, else another one: frames come innermost first."""
    best: Frame | None = None
    for one in islice(value, _MOST_FRAMES) if isinstance(value, list | tuple) else ():
        if not isinstance(one, dict):
            continue
        file, line = _text(one.get("filename")), _number(one.get("line"))
        if not file or line is None:
            continue
        whose = owner(file)
        frame = Frame(file, line, _text(one.get("name")))
        if whose == "user":
            return frame
        if whose == "library" and best is None:
            best = frame
    return best
