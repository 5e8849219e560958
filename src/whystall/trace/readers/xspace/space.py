"""Decodes an XSpace: planes (a device, the host), their lines (a stream, a thread) and the events on them.

Field numbers are those of openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto. Only the statistics of
events that `_WANTED` names are decoded, and only numbers and `_DESCRIBED` texts of planes: a file holds whole programs,
names of hosts, and any attachment of an event.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.readers.protobuf import BYTES, VARINT, Columns, Field, WireError, columns, fields, signed, text

_SPACE_PLANE, _SPACE_ERROR, _SPACE_WARNING = 1, 2, 3
_PLANE_ID, _PLANE_NAME, _PLANE_LINE, _PLANE_EVENT_NAMES, _PLANE_STAT_NAMES, _PLANE_STAT = 1, 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _LINE_BEGAN_NS, _LINE_EVENT, _LINE_SHOWN_NAME = 1, 2, 3, 4, 11
_EVENT_NAME, _EVENT_OFFSET_PS, _EVENT_DURATION_PS, _EVENT_STAT, _EVENT_OCCURRENCES = 1, 2, 3, 4, 5
_STAT_NAME, _STAT_UNSIGNED, _STAT_SIGNED, _STAT_TEXT, _STAT_REFERENCE = 1, 3, 4, 5, 7
_NAME_ID, _NAME, _NAME_SHOWN = 1, 2, 4
_KEY, _VALUE = 1, 2

_NUMBERS: Final = {"correlation_id": "correlation", "step_num": "step"}
_TEXTS: Final = ("kernel_details", "memcpy_details")
_DESCRIBED: Final = ("device_vendor", "device_type_string")
_LONGEST_TEXT: Final = 1 << 16
_PS: Final = 1000
_LATEST: Final = 1 << 61
_NONE: Final = -1
_NO_TIME: Final = -(1 << 62)
# A device or a host each: the machines with the most have some tens.
_MOST_PLANES: Final = 1 << 10
_MOST_PARTS: Final = 1 << 26
_MOST_LISTED: Final = 1 << 21
"""Limit of a plane's lines, names and statistics: more than a program of a million operations has."""
_BLOCK: Final = 1 << 16
"""Number of events to decode at once: their fields take some forty bytes each."""


class Line(NamedTuple):
    """A stream or a thread."""

    name: str
    number: int


@dataclass(slots=True)
class Plane:
    """A device's events, or the host's."""

    name: str
    lines: list[Line] = field(default_factory=list)
    events: pl.DataFrame = field(default_factory=pl.DataFrame)
    """line (a place in ``lines``), name, ts_ns, duration_ns, correlation?, step?, details?"""
    numbers: dict[str, int] = field(default_factory=dict)
    """The plane's own numbers: a device's memory in bytes, the profile's start in nanoseconds."""
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Space:
    """All content of a file, and its problems."""

    planes: list[Plane] = field(default_factory=list)
    events: int = 0
    unnamed: int = 0
    """Events whose name is not in the file."""
    counted: int = 0
    """Events with a number but without a time: they are on no line."""
    complaints: int = 0
    """Number of errors and warnings that the profiler noted when it wrote the file."""
    parts: int = 0
    """How many fields were walked, those within events apart."""
    damage: str | None = None
    full: bool = False
    """More events, or planes, than a profile has: the others are left out."""


def decode(data: bytes, most_events: int) -> Space:
    """The space that a file holds, as far as it can be read."""
    space = Space()
    try:
        for part in _walk(space, data, 0, len(data)):
            if part.number == _SPACE_PLANE and part.wire == BYTES:
                if len(space.planes) >= _MOST_PLANES:
                    space.full = True
                    break
                space.planes.append(_Decoder(data, space, most_events).plane(part))
            elif part.number in (_SPACE_ERROR, _SPACE_WARNING):
                space.complaints += 1
    except WireError as error:
        _damaged(space, error)
    return space


def _walk(space: Space, data: bytes, begin: int, end: int) -> Iterator[Field]:
    """The fields of a message, of all messages of a file no more than a profile has: two bytes may be one."""
    for one in fields(data, begin, end):
        space.parts += 1
        if space.parts > _MOST_PARTS:
            raise WireError("it has more parts than are read")
        yield one


def _damaged(space: Space, error: WireError) -> None:
    """Keeps the first damage: later damage often follows from it."""
    space.damage = space.damage or str(error)


class _Decoder:
    """Decodes one plane; damage in a part ends that part, not the plane."""

    def __init__(self, data: bytes, space: Space, most_events: int) -> None:
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._space = space
        self._most = most_events
        self._names: dict[int, str] = {}
        self._stats: dict[int, str] = {}

    def plane(self, part: Field) -> Plane:
        plane = Plane("")
        lines: list[Field] = []
        said: list[Field] = []
        for one in self._fields(part):
            if one.wire != BYTES:
                continue
            if one.number == _PLANE_NAME:
                plane.name = self._text(one)
            elif one.number == _PLANE_LINE:
                lines.append(one)
            elif one.number == _PLANE_EVENT_NAMES:
                self._add_name(self._names, one)
            elif one.number == _PLANE_STAT_NAMES:
                self._add_name(self._stats, one)
            elif one.number == _PLANE_STAT:
                said.append(one)
        # Names stand behind the lines that use them.
        self._describe(plane, said)
        spans = array("q")
        began_ns = np.array([self._line(one, plane, spans) for one in lines], np.int64)
        places = np.frombuffer(spans, np.int64).reshape(-1, 3)
        blocks = [self._events(places[at : at + _BLOCK], began_ns) for at in range(0, max(len(places), 1), _BLOCK)]
        plane.events = pl.concat(blocks)
        return plane

    def _fields(self, part: Field) -> list[Field]:
        """The fields of a message that is small, or of few parts, as far as they can be read."""
        found: list[Field] = []
        try:
            found.extend(itertools.islice(_walk(self._space, self._data, part.value, part.end), _MOST_LISTED))
        except WireError as error:
            _damaged(self._space, error)
        self._space.full |= len(found) == _MOST_LISTED
        return found

    def _text(self, part: Field) -> str:
        return text(self._data, part, _LONGEST_TEXT)

    def _add_name(self, names: dict[int, str], entry: Field) -> None:
        """Takes up an entry of a table of names; the shorter one that is meant to be shown goes before the other."""
        number, name, shown = 0, "", ""
        for one in self._fields(entry):
            if one.number == _KEY and one.wire == VARINT:
                number = signed(one.value)
            elif one.number == _VALUE and one.wire == BYTES:
                for part in self._fields(one):
                    if part.number == _NAME and part.wire == BYTES:
                        name = self._text(part)
                    elif part.number == _NAME_SHOWN and part.wire == BYTES:
                        shown = self._text(part)
        if shown or name:
            names[number] = shown or name

    def _describe(self, plane: Plane, said: list[Field]) -> None:
        for one in said:
            stat = self._stat(one.value, one.end)
            name = self._stats.get(stat[0], "")
            if stat[1] is not None:
                plane.numbers[name] = stat[1]
            elif name in _DESCRIBED and stat[2] is not None:
                plane.texts[name] = self._text_of(stat[2])

    def _stat(self, begin: int, end: int) -> tuple[int, int | None, Field | None]:
        """The number of a statistic's name, and the number or the text that it holds."""
        name, number, content = 0, None, None
        for one in _walk(self._space, self._data, begin, end):
            if one.wire == VARINT and one.number == _STAT_NAME:
                name = signed(one.value)
            elif one.wire == VARINT and one.number in (_STAT_UNSIGNED, _STAT_SIGNED):
                number = signed(one.value)
            elif (one.number == _STAT_TEXT and one.wire == BYTES) or (
                one.number == _STAT_REFERENCE and one.wire == VARINT
            ):
                content = one
        return name, number, content

    def _text_of(self, content: Field) -> str:
        return self._stats.get(signed(content.value), "") if content.wire == VARINT else self._text(content)

    def _line(self, part: Field, plane: Plane, spans: array[int]) -> int:
        """Takes up a line and where its events begin and end; returns the nanosecond that they count from."""
        name = shown = ""
        number = began_ns = 0
        place = len(plane.lines)
        try:
            for one in _walk(self._space, self._data, part.value, part.end):
                if one.number == _LINE_EVENT and one.wire == BYTES:
                    if self._space.events >= self._most:
                        self._space.full = True
                        break
                    self._space.events += 1
                    spans.extend((one.value, one.end, place))
                elif one.number == _LINE_NAME and one.wire == BYTES:
                    name = self._text(one)
                elif one.number == _LINE_SHOWN_NAME and one.wire == BYTES:
                    shown = self._text(one)
                elif one.number == _LINE_ID and one.wire == VARINT:
                    number = signed(one.value)
                elif one.number == _LINE_BEGAN_NS and one.wire == VARINT:
                    began_ns = signed(one.value)
        except WireError as error:
            _damaged(self._space, error)
        plane.lines.append(Line(name or shown, number))
        return began_ns

    def _events(self, places: NDArray[np.int64], began_ns: NDArray[np.int64]) -> pl.DataFrame:
        """The events at ``places`` (begin, end and line of each), without those that were only counted."""
        found = columns(self._bytes, places[:, 0], places[:, 1])
        if found.broken.any():
            _damaged(self._space, WireError(f"{found.broken.sum():,} events cannot be read"))
        name, offset, duration = (
            found.numbers(number) for number in (_EVENT_NAME, _EVENT_OFFSET_PS, _EVENT_DURATION_PS)
        )
        ts_ns, duration_ns = _nanoseconds(began_ns[places[:, 2]], offset, duration)
        frame = pl.DataFrame(
            {"line": places[:, 2], "name": self._named(name), "ts_ns": ts_ns, "duration_ns": duration_ns}
        )
        counted = np.zeros(len(places), np.bool_)
        counted[found.message[found.of(_EVENT_OCCURRENCES, VARINT)]] = True
        self._space.counted += int(counted.sum())
        return frame.with_columns(self._told(found, len(places))).filter(pl.Series(~counted))

    def _named(self, numbers: NDArray[np.int64]) -> pl.Series:
        used, place, times = np.unique(numbers, return_inverse=True, return_counts=True)
        names = [self._names.get(key) for key in used.tolist()]
        self._space.unnamed += sum(int(count) for count, name in zip(times, names, strict=True) if not name)
        told = [name or f"unnamed {key}" for key, name in zip(used.tolist(), names, strict=True)]
        return pl.Series(told, dtype=pl.String).gather(place)

    def _told(self, events: Columns, count: int) -> list[pl.Series]:
        """The statistics that are wanted of the events: correlation and step where they are numbers, and details."""
        rows = events.of(_EVENT_STAT, BYTES)
        stats = columns(self._bytes, events.value[rows], events.end[rows])
        event = events.message[rows]
        key = stats.numbers(_STAT_NAME)
        out = []
        for wanted, column in _NUMBERS.items():
            value = np.full(count, _NONE, np.int64)
            for kind in (_STAT_UNSIGNED, _STAT_SIGNED):
                said = stats.of(kind, VARINT)
                said = said[self._are(key[stats.message[said]], (wanted,))]
                value[event[stats.message[said]]] = stats.value[said]
            series = pl.Series(column, value)
            out.append(series.set(series < 0, None))
        texts = np.full(count, _NONE, np.int64)
        known: dict[str, int] = {}
        for number, wire in ((_STAT_REFERENCE, VARINT), (_STAT_TEXT, BYTES)):
            said = stats.of(number, wire)
            said = said[self._are(key[stats.message[said]], _TEXTS)]
            of_event, value, end = event[stats.message[said]], stats.value[said].tolist(), stats.end[said].tolist()
            told = (self._text_of(Field(number, wire, *place)) for place in zip(value, end, strict=True))
            texts[of_event] = [known.setdefault(text, len(known)) for text in told]
        details = pl.Series([*known, None], dtype=pl.String).gather(np.where(texts < 0, len(known), texts))
        return [*out, details.alias("details")]

    def _are(self, keys: NDArray[np.int64], names: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which of the numbers of statistics stand for one of the names."""
        return np.isin(keys, np.array([key for key, name in self._stats.items() if name in names], np.int64))


def _nanoseconds(
    began_ns: NDArray[np.int64], offset_ps: NDArray[np.int64], duration_ps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and length of events, both ends rounded to the nearest nanosecond: touching events do not overlap then."""
    sound = np.ones(len(offset_ps), np.bool_)
    for part in (began_ns, offset_ps, duration_ps):
        sound &= (part > -_LATEST) & (part < _LATEST)
    base, offset, duration = (np.where(sound, part, 0) for part in (began_ns, offset_ps, duration_ps))
    begin = (offset + _PS // 2) // _PS
    end = (offset + duration + _PS // 2) // _PS
    return np.where(sound, base + begin, _NO_TIME), end - begin
