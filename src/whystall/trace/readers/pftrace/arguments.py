"""Arguments of events: annotations of slices, extra data and launches of device work, under the names of Kineto.

Only arguments that a table has a column for are decoded: other attachments stay in the file.
"""

from __future__ import annotations

import contextlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.trace.readers.kineto.tables import ARGUMENTS
from whystall.trace.readers.pftrace.state import ARGUMENT, LAUNCH_ARGUMENT, TEXT, Scope, State, Value
from whystall.trace.readers.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    Field,
    WireError,
    columns,
    double,
    fields,
    signed,
    text,
)

SYNC_KIND: Final = "cuda_sync_kind"
"""Only slices of synchronization have it."""
Arguments = dict[str, Value]

_NAME_NUMBER, _TRUTH, _UNSIGNED, _SIGNED, _DOUBLE, _TEXT = 1, 2, 3, 4, 5, 6
_NAME, _ARRAY, _TEXT_NUMBER = 10, 12, 17
_VALUES: Final = (_TRUTH, _UNSIGNED, _SIGNED, _DOUBLE, _TEXT, _ARRAY, _TEXT_NUMBER)
_EXTRA_NAME, _EXTRA_VALUE = 1, 2
_GRID, _GROUP, _LAUNCH_ARG = 1, 2, 3
_LONGEST: Final = 1 << 20
_DEEPEST: Final = 6
# Shapes of a thousand tensors take a third of it.
_LARGEST_ARRAY: Final = 1 << 16
_MOST_ARRAYS: Final = 1 << 14
# Kineto's names for renamed arguments; "stream id" is the stream that work ran on, which need not be the lane that
# shows it.
_RENAMED: Final = {
    "device id": "device",
    "stream id": "stream",
    "context id": "context",
    "registers_per_thread": "registers per thread",
}
_KEPT: Final = ARGUMENTS | {"graph id", "graph node id", SYNC_KIND}
# Values of any type become text.
_TEXTS: Final = frozenset({"Collective name", "dtype", "Process Group Name", "Process Group Ranks"})


def slice_arguments(
    data: bytes, whole: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64],
    event: NDArray[np.int64], scopes: list[Scope], state: State,
) -> dict[int, Arguments]:  # fmt: skip
    """The arguments of each event from its annotations; ``event`` is the event of each annotation."""
    found = columns(whole, begin, end)
    named, numbered = (
        _firsts(found.of(_NAME, BYTES), found.message),
        _firsts(found.of(_NAME_NUMBER, VARINT), found.message),
    )
    valued = _firsts(np.flatnonzero(np.isin(found.number, _VALUES)), found.message)
    out: dict[int, Arguments] = {}
    for place, of in enumerate(event.tolist()):
        row = valued.get(place)
        if row is None:
            continue
        if place in named:
            key: str | None = data[found.value[named[place]] : found.end[named[place]]].decode("utf-8", "replace")
        else:
            number = int(found.value[numbered[place]]) if place in numbered else 0
            key = state.name(ARGUMENT, scopes[of], number)
        if key in _KEPT:
            one = Field(*(int(part[row]) for part in (found.number, found.wire, found.value, found.end)))
            with contextlib.suppress(WireError):  # one argument that is damaged costs no event
                if one.number == _ARRAY:
                    value = _known_array(data, int(begin[place]), int(end[place]), scopes[of], state)
                else:
                    value = _value(data, one, scopes[of], state, 0)
                if value is not None:
                    out.setdefault(of, {})[key] = value
    return out


def _known_array(data: bytes, begin: int, end: int, scope: Scope, state: State) -> Value | None:
    """The array that an annotation holds, decoded once for all events that have the same (shapes repeat)."""
    if end - begin > _LARGEST_ARRAY:
        return None
    key = (data[begin:end], scope)
    if key not in state.arrays:
        if len(state.arrays) >= _MOST_ARRAYS:
            state.arrays.clear()
        state.arrays[key] = _array(data, Field(_ARRAY, BYTES, begin, end), scope, state, 0)
    return state.arrays[key]


def _firsts(rows: NDArray[np.int64], message: NDArray[np.int64]) -> dict[int, int]:
    return dict(zip(message[rows][::-1].tolist(), rows[::-1].tolist(), strict=True))


def _value(data: bytes, one: Field, scope: Scope, state: State, depth: int) -> Value | None:
    """The content of a value's field; ``None`` where it is none, or nested deeper than shapes are."""
    if one.wire == VARINT:
        if one.number == _TEXT_NUMBER:
            return state.name(TEXT, scope, one.value)
        return bool(one.value) if one.number == _TRUTH else signed(one.value)
    if one.wire == FIXED64:
        number = double(data, one)
        return number if np.isfinite(number) else None
    if one.number == _TEXT and one.wire == BYTES:
        return text(data, one, _LONGEST)
    return _array(data, one, scope, state, depth) if one.number == _ARRAY and depth <= _DEEPEST else None


def _array(data: bytes, one: Field, scope: Scope, state: State, depth: int) -> list[Value]:
    elements: list[Value] = []
    for element in fields(data, one.value, one.end):
        if element.number == _ARRAY and element.wire == BYTES:
            inner = [of for of in fields(data, element.value, element.end) if of.number in _VALUES]
            nested = not inner or inner[0].number == _ARRAY
            value = _value(data, element if nested else inner[0], scope, state, depth + 1)
            elements.append([] if value is None else value)
    return elements


def extra_data(
    data: bytes, whole: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> list[tuple[str, Value] | None]:
    """The pairs of name and value at each place, under Kineto's names; ``None`` for dropped ones."""
    found = columns(whole, begin, end)
    names, values = (_firsts(found.of(number, BYTES), found.message) for number in (_EXTRA_NAME, _EXTRA_VALUE))
    out: list[tuple[str, Value] | None] = []
    for place in range(len(begin)):
        if place not in names or place not in values:
            out.append(None)
            continue
        name, value = (
            data[found.value[row] : found.end[row]].decode("utf-8", "replace") for row in (names[place], values[place])
        )
        key = _RENAMED.get(name, name)
        out.append((key, _number(value) if key not in _TEXTS else value) if key in _KEPT else None)
    return out


def _number(value: str) -> Value:
    whole = value.removeprefix("-")
    return int(value) if whole.isascii() and whole.isdecimal() and len(whole) < len(str(1 << 63)) else value


def launch(data: bytes, part: Field, scope: Scope, state: State) -> Arguments:
    """Grid, block and further fields of a kernel's launch. Raises `WireError` where it cannot be read."""
    out: Arguments = {}
    for one in fields(data, part.value, part.end):
        if one.wire != BYTES:
            continue
        if one.number in {_GRID, _GROUP}:
            sizes = {of.number: of.value for of in fields(data, one.value, one.end) if of.wire == VARINT}
            out["grid" if one.number == _GRID else "block"] = [min(sizes.get(axis, 0), 1 << 40) for axis in (1, 2, 3)]
        elif one.number == _LAUNCH_ARG:
            told = {of.number: of.value for of in fields(data, one.value, one.end) if of.wire == VARINT}
            name = state.name(LAUNCH_ARGUMENT, scope, told.get(1, 0)) or ""
            key = _RENAMED.get(name, name)
            if key in _KEPT:
                out[key] = signed(told.get(4, told.get(3, 0)))
    return out
