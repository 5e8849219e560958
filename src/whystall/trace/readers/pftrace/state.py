"""State of a packet sequence in a Perfetto trace: names by number, tracks, clocks.

Field numbers are those of google/perfetto, protos/perfetto/trace; names are valid for one sequence of packets until it
clears them. Command lines of processes are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from whystall.trace.readers.protobuf import BYTES, VARINT, Field, WireError, fields, signed, text

CLOCKS, INTERNED, DEFAULTS, TRACK = 6, 12, 59, 60
"""The fields of a packet that describe others."""

CATEGORY, NAME, ARGUMENT, SPECIFICATION, TEXT, KERNEL, LAUNCH_ARGUMENT = 1, 2, 3, 24, 29, 1000, 1001
"""The tables of names that events refer to, by their fields of ``InternedData``."""
_COUNTERS: Final = 47
_SPEC: Final = 1
_TABLES: Final = (CATEGORY, NAME, ARGUMENT, SPECIFICATION, TEXT, KERNEL, LAUNCH_ARGUMENT)
_NUMBER, _TEXT, _DEMANGLED = 1, 2, 3
_TRACK_ID, _TRACK_NAME, _TRACK_PROCESS, _TRACK_THREAD = 1, 2, 3, 4
_PID, _TID, _THREAD_NAME = 1, 2, 5
_CLOCK, _CLOCK_ID, _CLOCK_TIME, _DEFAULT_CLOCK = 1, 1, 2, 58
_REAL_TIME, _BOOT_TIME = 1, 6
_LONGEST: Final = 1 << 16
_MOST_ENTRIES: Final = 1 << 22
_LATEST_NS: Final = 1 << 61


Value = bool | int | float | str | list["Value"]
"""Possible values of an event's argument."""


class Scope(NamedTuple):
    """Where a number stands for a name: a sequence of packets, and how often it was cleared."""

    sequence: int
    generation: int


class Track(NamedTuple):
    """A thread as its track describes it."""

    pid: int
    tid: int
    name: str


class Described(NamedTuple):
    """Counters of one device: the names of their numbers; -1 for an unknown device."""

    device: int
    names: dict[int, str]


@dataclass(slots=True)
class State:
    """Names, tracks and clocks, as far as a file was read."""

    names: dict[tuple[int, Scope, int], str] = field(default_factory=dict)
    tracks: dict[int, Track] = field(default_factory=dict)
    counters: dict[tuple[Scope, int], Described] = field(default_factory=dict)
    offset_ns: int = 0
    """From the trace's clock to nanoseconds since 1970."""
    told: int = 0
    """How many names were given, the same ones again included."""
    arrays: dict[tuple[bytes, Scope], list[Value]] = field(default_factory=dict)
    """Arguments that were decoded, by their bytes."""
    other_clocks: set[int] = field(default_factory=set)
    """Sequences of packets whose times are on a clock of their own."""

    def name(self, table: int, scope: Scope, number: int) -> str | None:
        """The name that a number stands for, if the file has it."""
        return self.names.get((table, scope, number))

    def take(self, data: bytes, packet: Field, scope: Scope) -> None:
        """Records a packet's descriptions for others. Raises `WireError` where it cannot be read."""
        for one in fields(data, packet.value, packet.end):
            if one.wire != BYTES:
                continue
            if one.number == INTERNED:
                self._intern(data, one, scope)
            elif one.number == TRACK:
                self._track(data, one)
            elif one.number == CLOCKS:
                self._clocks(data, one)
            elif one.number == DEFAULTS and any(
                part.number == _DEFAULT_CLOCK and part.value not in {0, _BOOT_TIME}
                for part in fields(data, one.value, one.end)
            ):
                self.other_clocks.add(scope.sequence)

    def _intern(self, data: bytes, part: Field, scope: Scope) -> None:
        for entry in fields(data, part.value, part.end):
            if entry.number == _COUNTERS and entry.wire == BYTES:
                self._describe(data, entry, scope)
            if entry.number not in _TABLES or entry.wire != BYTES:
                continue
            number, name = 0, ""
            for one in fields(data, entry.value, entry.end):
                if one.number == _NUMBER and one.wire == VARINT:
                    number = one.value
                elif one.wire == BYTES and (
                    one.number == _TEXT or (entry.number == KERNEL and one.number == _DEMANGLED)
                ):
                    name = text(data, one, _LONGEST)
            self._count()
            self.names[entry.number, scope, number] = name

    def _count(self) -> None:
        self.told += 1
        if self.told > _MOST_ENTRIES:
            raise WireError("it has more names than are read")

    def _describe(self, data: bytes, entry: Field, scope: Scope) -> None:
        """Records an ``InternedGpuCounterDescriptor``: its number, a device, and the counters in a message.

        The three are of different kinds but for the two numbers, the first of which is its own.
        """
        number, device = 0, -1
        names: dict[int, str] = {}
        for one in fields(data, entry.value, entry.end):
            if one.number == _NUMBER and one.wire == VARINT:
                number = one.value
            elif one.wire == VARINT:
                device = signed(one.value)
            elif one.wire == BYTES:
                for spec in fields(data, one.value, one.end):
                    if spec.number == _SPEC and spec.wire == BYTES:
                        self._count()
                        told = {of.number: of for of in fields(data, spec.value, spec.end)}
                        if {_NUMBER, _TEXT} <= told.keys() and told[_TEXT].wire == BYTES:
                            names[told[_NUMBER].value] = text(data, told[_TEXT], _LONGEST)
        self._count()
        self.counters[scope, number] = Described(device, names)

    def _track(self, data: bytes, part: Field) -> None:
        uuid = pid = tid = None
        name = ""
        for one in fields(data, part.value, part.end):
            if one.number == _TRACK_ID and one.wire == VARINT:
                uuid = one.value
            elif one.number == _TRACK_NAME and one.wire == BYTES:
                name = name or text(data, one, _LONGEST)
            elif one.number in {_TRACK_PROCESS, _TRACK_THREAD} and one.wire == BYTES:
                for of in fields(data, one.value, one.end):
                    if of.number == _PID and of.wire == VARINT:
                        pid = signed(of.value)
                    elif one.number == _TRACK_THREAD and of.number == _TID and of.wire == VARINT:
                        tid = signed(of.value)
                    elif one.number == _TRACK_THREAD and of.number == _THREAD_NAME and of.wire == BYTES:
                        name = text(data, of, _LONGEST)
        if uuid is not None and len(self.tracks) < _MOST_ENTRIES:
            self.tracks[uuid] = Track(pid or 0, tid if tid is not None else pid or 0, name)

    def _clocks(self, data: bytes, part: Field) -> None:
        times: dict[int, int] = {}
        for clock in fields(data, part.value, part.end):
            if clock.number == _CLOCK and clock.wire == BYTES:
                told = {one.number: one.value for one in fields(data, clock.value, clock.end) if one.wire == VARINT}
                times[told.get(_CLOCK_ID, 0)] = told.get(_CLOCK_TIME, 0)
        real, boot = times.get(_REAL_TIME, 0), times.get(_BOOT_TIME, 0)
        if not self.offset_ns and 0 < boot < _LATEST_NS and 0 < real < _LATEST_NS:
            self.offset_ns = real - boot
