"""Walks messages of protocol buffers without their descriptions: fields by number, nothing copied before it is needed.

No description of types is needed to read the few fields that a trace is made of, and the file of a stranger is never
handed to a parser that builds objects of all that it holds. Wire format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
# Ten bytes of seven bits hold 64.
_LONGEST_VARINT: Final = 10
# The bit of a byte that marks a continuation.
_MORE: Final = 0x80
_MASK: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63


class WireError(Exception):
    """The bytes are no sound message; the text is the reason, in words for users."""


class Field(NamedTuple):
    """One field of a message.

    ``value`` is the number itself of a ``VARINT``; of all others it is where the content begins, and ``end`` where it
    ends.
    """

    number: int
    wire: int
    value: int
    end: int


def fields(data: bytes, begin: int, end: int) -> Iterator[Field]:
    """The fields of the message in ``data[begin:end]``, in the order of the file.

    A field whose length exceeds the end is returned as far as it goes: then, as where no field can be read, `WireError`
    is raised.
    """
    at = begin
    while at < end:
        tag, at = (data[at], at + 1) if data[at] < _MORE else varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise WireError("a field has the number 0")
        if wire == VARINT:
            value, at = varint(data, at, end)
            yield Field(number, wire, value, at)
            continue
        if wire == BYTES:
            length, at = varint(data, at, end)
        elif wire in _WIDTHS:
            length = _WIDTHS[wire]
        else:
            raise WireError(f"a field is of the kind {wire}, which no profiler writes")
        if length > end - at:
            if wire == BYTES:
                yield Field(number, wire, at, end)
            raise WireError(f"{length - (end - at):,} bytes of a field are missing")
        yield Field(number, wire, at, at + length)
        at += length


def varint(data: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """The unsigned number at ``at``, and where it ends. Raises `WireError` where it has no end.

    >>> varint(bytes([0xAC, 0x02]), 0, 2)
    (300, 2)
    """
    value = shift = 0
    for place in range(at, min(end, at + _LONGEST_VARINT)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, place + 1
        shift += 7
    raise WireError("a number has no end")


@dataclass(frozen=True, slots=True)
class Columns:
    """The fields of many messages, column by column, each message's in the order of the file.

    ``message`` is the place of a field's message among the requested ones; the rest is as in `Field`, but that
    ``value`` is an ``int64`` of the same bits.
    """

    message: NDArray[np.int64]
    number: NDArray[np.int64]
    wire: NDArray[np.int64]
    value: NDArray[np.int64]
    end: NDArray[np.int64]
    broken: NDArray[np.bool_]
    """By message, whether it could not be read to its end: the part before the damage is there."""

    def numbers(self, number: int) -> NDArray[np.int64]:
        """By message the number that a field holds, 0 where there is none; the last of several counts."""
        out = np.zeros(len(self.broken), np.int64)
        rows = self.of(number, VARINT)
        out[self.message[rows]] = self.value[rows]
        return out

    def of(self, number: int, wire: int) -> NDArray[np.int64]:
        """The rows of the fields of one number and kind, message after message."""
        rows = np.flatnonzero((self.number == number) & (self.wire == wire))
        return rows[np.argsort(self.message[rows], kind="stable")]


def columns(data: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64], most: int = 1 << 10) -> Columns:
    """The fields of the messages in ``data[begin:end]``, which lie within ``data``; a field a round of all at once.

    That is ten times as fast as one message after the other where each has few fields. One with more than ``most``
    counts as broken.
    """
    at = begin.astype(np.int64)
    broken = np.zeros(len(at), np.bool_)
    rounds: list[tuple[NDArray[np.int64], ...]] = []
    active = np.flatnonzero(at < end)
    while len(active) and len(rounds) < most:
        tag, after, sound = _varints(data, at[active], end[active])
        number, wire = (tag.view(np.uint64) >> np.uint64(3)).view(np.int64), tag & 7
        whole, past, read = _varints(data, after, end[active])
        sized = np.select([wire == FIXED64, wire == FIXED32], [8, 4], -1)
        # An absurd length is negative, or leads beyond the end.
        first = np.where(sized >= 0, after, past)
        length = np.where(sized >= 0, sized, np.where(wire == BYTES, whole, 0))
        fits = (length >= 0) & (length <= end[active] - first)
        known = np.where(sized >= 0, fits, read & np.isin(wire, (VARINT, BYTES)) & fits)
        sound &= known & (number > 0)
        value, until = np.where(wire == VARINT, whole, first), first + np.where(fits, length, 0)
        rounds.append(tuple(column[sound] for column in (active, number, wire, value, until)))
        broken[active[~sound]] = True
        active, until = active[sound], until[sound]
        at[active] = until
        active = active[until < end[active]]
    broken[active] = True
    joined = [np.concatenate([np.zeros(0, np.int64), *parts]) for parts in zip(*rounds, strict=True)]
    message, number, wire, value, until = joined or [np.zeros(0, np.int64)] * 5
    return Columns(message, number, wire, value, until, broken)


def _varints(
    data: NDArray[np.uint8], at: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The numbers at ``at``, as an ``int64`` of the same bits, where they end, and whether they do."""
    value, after = np.zeros(len(at), np.uint64), at.copy()
    sound = np.zeros(len(at), np.bool_)
    left = np.flatnonzero(at < end)
    for place in range(_LONGEST_VARINT):
        byte = data[at[left] + place]
        value[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
        ended = left[byte < _MORE]
        sound[ended], after[ended] = True, at[ended] + place + 1
        left = left[byte >= _MORE]
        left = left[at[left] + place + 1 < end[left]]
        if not len(left):
            break
    return value.view(np.int64), after, sound


def signed(value: int) -> int:
    """A varint as the ``int64`` that it stands for.

    >>> signed((1 << 64) - 2)
    -2
    """
    return value - (1 << 64) if value & _SIGN else value


def double(data: bytes, field: Field) -> float:
    """The value of a ``FIXED64`` field of a ``double``."""
    number: float = struct.unpack_from("<d", data, field.value)[0]
    return number


def text(data: bytes, field: Field, longest: int) -> str:
    """The value of a ``BYTES`` field of a ``string``: at most its first ``longest`` bytes."""
    return data[field.value : min(field.end, field.value + longest)].decode("utf-8", "replace")
