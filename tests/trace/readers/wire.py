"""Writes and reads protocol buffers by hand: nothing of whystall's, so that what it decodes has another author."""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | float | str | bytes


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: Value) -> bytes:
    """A whole number as a varint, a float as a double, text and messages with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(*parts: tuple[int, Value | None]) -> bytes:
    """The fields in the order given, without those that are `None`."""
    return b"".join(field(number, value) for number, value in parts if value is not None)


def parsed(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a sound message: numbers, or the bytes of everything else."""
    at = 0

    def number() -> int:
        nonlocal at
        groups = []
        while True:
            groups.append(data[at] & 127)
            at += 1
            if data[at - 1] < 128:
                return sum(group << 7 * place for place, group in enumerate(groups))

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or number()
        yield tag >> 3, data[at : at + size]
        at += size


def signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
