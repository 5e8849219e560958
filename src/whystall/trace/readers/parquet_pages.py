"""Unpacked sizes of a Parquet file's columns, from the headers of their pages: before anything unpacks them.

A page of some bytes may claim a gigabyte, and a footer may claim otherwise. Only the page headers are walked, since a
library follows them. Format: parquet.apache.org/docs/file-format, thrift's compact protocol.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whystall.disk import reading
from whystall.trace.readers.protobuf import WireError, varint

_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 8
_DEEPEST: Final = 16
# Kinds of values in thrift's compact protocol.
_TRUE, _FALSE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 8, 9, 10, 11, 12
_WIDTHS: Final = {3: 1, 7: 8}  # types of a fixed width
_NUMBERS: Final = (4, 5, 6)
_LONG_LIST: Final = 15
# Fields by number: of the file, a column of the schema, a group of rows, a column's chunk, a page.
_SCHEMA, _GROUPS = 2, 4
_CHILDREN: Final = 5
_CHUNKS, _ABOUT = 1, 3
_PATH, _PACKED_BYTES, _FIRST_PAGE, _DICTIONARY = 3, 7, 9, 11
_UNPACKED_BYTES, _PAGE_BYTES = 2, 3
_DATA_HEADERS: Final = {5: 2, 8: 4}  # of either version, with the field for the encoding of values
_VALUES: Final = 1
# Each value takes over a part of the one before: of all that profilers write nothing is packed so.
_BY_PREFIXES: Final = 7


Message = dict[int, Any]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """How many bytes the pages of some columns unpack to, and how many values the longest of these columns has."""

    bytes: int
    values: int


def unpacked(path: Path, columns: Collection[str]) -> Unpacked:
    """Unpacked sizes of some columns of a file.

    Raises `WireError` where the file is damaged, or has nested columns, which no table of a profiler has.
    """
    if path.stat().st_size <= _TAIL_BYTES:
        raise WireError("the file does not end as it should")
    with reading.opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end = len(data) - _TAIL_BYTES
        begin = end - int.from_bytes(data[end : end + 4], "little")
        if data[end + 4 :] != _MAGIC or begin < len(_MAGIC):
            raise WireError("the file does not end as it should")
        footer, _ = _message(data, begin, end)
        if any(_CHILDREN in element for element in _messages(footer, _SCHEMA)[1:]):
            raise WireError("a column holds columns")
        sizes, values = 0, dict.fromkeys(columns, 0)
        chunks = [chunk for group in _messages(footer, _GROUPS) for chunk in _messages(group, _CHUNKS)]
        for about in (_inner(chunk, _ABOUT) for chunk in chunks):
            name = _path(about)
            if name in values:
                size, count = _pages(data, about, begin)
                sizes, values[name] = sizes + size, values[name] + count
    return Unpacked(sizes, max(values.values(), default=0))


def _pages(data: mmap.mmap, about: Message, end: int) -> tuple[int, int]:
    """The unpacked size of a chunk's pages, and their number of values."""
    at = _number(about, _DICTIONARY) or _number(about, _FIRST_PAGE)
    stop = at + _number(about, _PACKED_BYTES)
    if not 0 < at <= stop <= end:
        raise WireError("a column lies outside of the file")
    size = count = 0
    while at < stop:
        header, at = _message(data, at, stop)
        packed, whole = _number(header, _PAGE_BYTES), _number(header, _UNPACKED_BYTES)
        if not 0 <= packed <= stop - at or whole < 0:
            raise WireError("a page lies outside of its column")
        for field, encoding in _DATA_HEADERS.items():
            of_data = _inner(header, field)
            if _number(of_data, encoding) == _BY_PREFIXES:
                raise WireError("values are packed by what they have in common")
            count += max(_number(of_data, _VALUES), 0)
        size += whole
        at += packed
    return size, count


def _number(message: Message, field: int) -> int:
    found = message.get(field, 0)
    if not isinstance(found, int):
        raise WireError("a field is no number")
    return found


def _inner(message: Message, field: int) -> Message:
    found = message.get(field, {})
    if not isinstance(found, dict):
        raise WireError("a field is no message")
    return found


def _messages(message: Message, field: int) -> list[Message]:
    found = message.get(field, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise WireError("a list holds something else than messages")
    return found


def _path(about: Message) -> str:
    """The name of a chunk's column."""
    found = about.get(_PATH, [])
    if not isinstance(found, list) or not all(isinstance(part, bytes) for part in found):
        raise WireError("a column has no name")
    return b".".join(found).decode("utf-8", "replace")


def _message(data: mmap.mmap, at: int, end: int, depth: int = 0) -> tuple[Message, int]:
    """The fields of a message by number, and where it ends."""
    found: Message = {}
    field = 0
    while at < end:
        head, at = data[at], at + 1
        if not head:
            return found, at
        if step := head >> 4:
            field += step
        else:
            number, at = varint(data, at, end)
            field = _signed(number)
        found[field], at = _value(data, at, end, head & 15, depth)
    raise WireError("a message has no end")


def _value(data: mmap.mmap, at: int, end: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise WireError("messages lie in each other too deeply")
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind == _STRUCT:
        return _message(data, at, end, depth + 1)
    if kind in (_LIST, _SET):
        return _values(data, at, end, depth)
    if kind == _MAP:
        raise WireError("a message holds a map, which none of a table does")
    if kind in _WIDTHS:
        return None, _within(at + _WIDTHS[kind], end)
    number, at = varint(data, at, end)
    if kind in _NUMBERS:
        return _signed(number), at
    if kind != _BINARY:
        raise WireError(f"a field is of the kind {kind}, which there is none of")
    last = _within(at + number, end)
    return data[at:last], last


def _values(data: mmap.mmap, at: int, end: int, depth: int) -> tuple[list[Any], int]:
    head, at = data[_within(at + 1, end) - 1], at + 1
    count, kind = head >> 4, head & 15
    if count == _LONG_LIST:
        count, at = varint(data, at, end)
    found = []
    for _ in range(min(count, end - at + 1)):
        if kind in (_TRUE, _FALSE):
            value, at = None, _within(at + 1, end)  # in a list each takes a byte
        else:
            value, at = _value(data, at, end, kind, depth + 1)
        found.append(value)
    return found, at


def _within(at: int, end: int) -> int:
    if at > end:
        raise WireError("a message leads beyond its end")
    return at


def _signed(number: int) -> int:
    """A number whose sign is its lowest bit."""
    return (number >> 1) ^ -(number & 1)
