"""Turns packets into the events of PyTorch's own JSON, from which the reader of Kineto's traces makes tables.

torch writes the same events with the same arguments either way (torch/csrc/profiler/cuspy/cuspy_pftrace.cpp,
torch/profiler/_cuspy/trace.py): host activity as slices on tracks, device events as render stages.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystall.trace.readers.pftrace.arguments import SYNC_KIND, Arguments, extra_data, launch, slice_arguments
from whystall.trace.readers.pftrace.state import (
    CATEGORY,
    CLOCKS,
    DEFAULTS,
    INTERNED,
    KERNEL,
    NAME,
    SPECIFICATION,
    TRACK,
    Scope,
    State,
    Track,
)
from whystall.trace.readers.pftrace.waits import Stage, Waits
from whystall.trace.readers.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    Columns,
    Field,
    WireError,
    columns,
    double,
    fields,
    text,
)

_PACKET: Final = 1
_TIME, _SEQUENCE, _SLICE, _FLAGS, _COMPRESSED, _COUNTERS, _STAGE, _CLOCK = 8, 10, 11, 13, 50, 52, 53, 58
_CLEARED: Final = 1
_TYPE, _TRACK_ID, _NAME_NUMBER, _NAME, _CATEGORIES, _ANNOTATION = 9, 11, 10, 23, 3, 4
_BEGIN, _END, _OF_COUNTER = 1, 2, 4
_SAMPLE, _DESCRIBED_BY = 2, 4
_SAMPLE_OF, _WHOLE_NUMBER, _DOUBLE = 1, 2, 3
_DURATION, _EXTRA, _GPU, _KIND, _STAGE_NAME, _KERNEL, _STAGE_NAME_NUMBER, _LAUNCH = 2, 6, 11, 14, 17, 19, 20, 21
_ID, _WAITS_FOR = 1, 18
_DEFAULT_CLOCKS: Final = (0, 6)
# The encoder's names for its stages, with Kineto's categories.
_CATEGORIES_OF_STAGES: Final = {
    "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Annotation": "gpu_user_annotation",
    "EventRecord": "graph_event_node", "HostNode": "graph_host_node",
}  # fmt: skip
_OVERHEAD: Final = "Overhead"
_LONGEST: Final = 1 << 16
_LATEST_NS: Final = 1 << 61
_BLOCK: Final = 1 << 15
_MOST_WAITING: Final = 1 << 23
_MOST_KEPT: Final = 1 << 16


class _Slice(NamedTuple):
    """The beginning of a slice, or its end, which has no event."""

    ts_ns: int
    track: int
    event: bytes


@dataclass(slots=True)
class Found:
    """The file's content besides the events that were yielded."""

    packets: int = 0
    open_slices: int = 0
    other_clocks: int = 0
    compressed: int = 0
    untimed: int = 0
    undescribed: int = 0
    """Values of counters without a description in the file of their kind or their device."""
    full: bool = False
    """More packets than a trace has: the others are left out."""
    damage: str | None = None


@dataclass(slots=True)
class _Run:
    """Slices that wait for their ends."""

    begins: list[_Slice] = field(default_factory=list)
    ends: list[_Slice] = field(default_factory=list)
    stacks: dict[int, list[_Slice]] = field(default_factory=dict)
    torn: bool = False
    """Packets among them are lost."""


class Events:
    """Walks a file and gives its events, each as JSON without the bracket that closes it."""

    def __init__(self, data: bytes, most_packets: int) -> None:
        self._most = most_packets
        self.found = Found()
        self._data = data
        self._whole = np.frombuffer(data, np.uint8)
        self._state = State()
        self._generations: dict[int, int] = {}
        self._run = _Run()
        self._torn = False  # packets of the current block are lost
        self._cut = 0  # packets with a missing part at the end
        self._launches: dict[tuple[bytes, Scope], Arguments] = {}
        self._waits = Waits()

    def walk(self) -> Iterator[bytes]:
        """The events in the order of the file, slices where they end; names of threads come last."""
        spans = array("q")
        try:
            for one in fields(self._data, 0, len(self._data)):
                if one.number == _PACKET and one.wire == BYTES:
                    if self.found.packets >= self._most:
                        self.found.full = True
                        break
                    self.found.packets += 1
                    spans.extend((one.value, one.end))
                    if len(spans) == 2 * _BLOCK:
                        yield from self._block(np.frombuffer(spans, np.int64).reshape(-1, 2))
                        spans = array("q")
        except WireError as error:
            self._damaged(error)
            self._cut = 1
        yield from self._block(np.frombuffer(spans, np.int64).reshape(-1, 2))
        yield from self._paired(last=True)
        self.found.open_slices += sum(map(len, self._run.stacks.values()))
        yield from self._waits.arrows()
        for track in self._state.tracks.values():
            about = {"ph": "M", "name": "thread_name", "pid": track.pid, "tid": track.tid, "args": {"name": track.name}}
            yield msgspec.json.encode(about)

    def _damaged(self, error: WireError) -> None:
        self.found.damage = self.found.damage or str(error)

    def _block(self, places: NDArray[np.int64]) -> Iterator[bytes]:
        packets = self._columns(places, "packets")
        self._torn = bool(packets.broken[: len(places) - self._cut].any())
        self._run.torn |= self._torn
        sequence, flags = (packets.numbers(number) for number in (_SEQUENCE, _FLAGS))
        scopes = self._scopes(packets, places, sequence, (flags & _CLEARED) != 0)
        times = packets.numbers(_TIME)
        clock = packets.numbers(_CLOCK)
        odd = ~np.isin(clock, _DEFAULT_CLOCKS) | np.isin(sequence, list(self._state.other_clocks))
        self.found.compressed += len(packets.of(_COMPRESSED, BYTES))
        for number, read in ((_SLICE, self._slices), (_STAGE, self._stages), (_COUNTERS, self._counters)):
            rows = packets.of(number, BYTES)
            self.found.other_clocks += int(odd[packets.message[rows]].sum())
            rows = rows[~odd[packets.message[rows]]]
            if len(rows):
                owner = packets.message[rows]
                spans = np.stack([packets.value[rows], packets.end[rows]], 1)
                yield from read(spans, times[owner], [scopes[place] for place in owner.tolist()])

    def _columns(self, places: NDArray[np.int64], what: str) -> Columns:
        found = columns(self._whole, places[:, 0], places[:, 1])
        if found.broken.any():
            self._damaged(WireError(f"{found.broken.sum():,} {what} cannot be read"))
        return found

    def _scopes(
        self, packets: Columns, places: NDArray[np.int64], sequence: NDArray[np.int64], cleared: NDArray[np.bool_]
    ) -> list[Scope]:
        """The scope of each packet's numbers; records packets' descriptions for others on the way."""
        telling = np.isin(packets.number, (CLOCKS, INTERNED, DEFAULTS, TRACK)) & (packets.wire == BYTES)
        tells = set(packets.message[telling].tolist())
        scopes = []
        for place, (number, clears) in enumerate(zip(sequence.tolist(), cleared.tolist(), strict=True)):
            if clears:
                self._generations[number] = self._generations.get(number, 0) + 1
            scope = Scope(number, self._generations.get(number, 0))
            scopes.append(scope)
            if place in tells:
                try:
                    packet = Field(_PACKET, BYTES, int(places[place, 0]), int(places[place, 1]))
                    self._state.take(self._data, packet, scope)
                except WireError as error:
                    self._damaged(error)
        return scopes

    def _slices(self, spans: NDArray[np.int64], times: NDArray[np.int64], scopes: list[Scope]) -> Iterator[bytes]:
        found = self._columns(spans, "events")
        types, tracks = (found.numbers(number).tolist() for number in (_TYPE, _TRACK_ID))
        rows = found.of(_ANNOTATION, BYTES)
        told = slice_arguments(
            self._data, self._whole, found.value[rows], found.end[rows], found.message[rows], scopes, self._state
        )
        names = self._names(found, scopes, _NAME, _NAME_NUMBER)
        numbered = _present(found, _CATEGORIES, VARINT)
        for place, ts_ns in enumerate(times.tolist()):
            if types[place] == _OF_COUNTER:
                self.found.undescribed += 1
            elif types[place] == _END:
                self._run.ends.append(_Slice(ts_ns, tracks[place], b""))
            elif types[place] == _BEGIN:
                if self._run.ends:
                    yield from self._paired()
                if len(self._run.begins) >= _MOST_WAITING:
                    self.found.full = True
                    continue
                category = self._state.name(CATEGORY, scopes[place], numbered.get(place, 0))
                event = self._slice(category, names[place], tracks[place], told.get(place, {}))
                self._run.begins.append(_Slice(ts_ns, tracks[place], event))

    def _slice(self, category: str | None, name: str | None, number: int, arguments: Arguments) -> bytes:
        track = self._state.tracks.get(number, Track(0, number, ""))
        kind = arguments.pop(SYNC_KIND, None)
        if category is None:
            category = "cuda_sync" if kind is not None else "overhead" if track.name == _OVERHEAD else "track_event"
        return _encoded(category, name or "unnamed", track.pid, track.tid, arguments)

    def _paired(self, *, last: bool = False) -> Iterator[bytes]:
        """The slices whose ends are known.

        torch writes the beginnings of many slices and then their ends in the same order, regardless of their times.
        Others write in the order of time, where an end closes the last slice that began on its track. If packets in
        between are lost, the pairs are unknown, except for those before a file's early end.
        """
        run, self._run = self._run, _Run(stacks=self._run.stacks, torn=self._torn)
        times = [one.ts_ns for one in (*run.begins, *run.ends)]
        if times != sorted(times):
            ends = run.ends[: len(run.begins)]
            whole = len(ends) == len(run.begins) or last or self.found.full
            alike = [one.track for one in run.begins[: len(ends)]] == [one.track for one in ends]
            if run.torn or not whole or not alike:
                ends = []
            self.found.open_slices += len(run.begins) - len(ends)
            for begin, end in zip(run.begins, ends, strict=False):
                yield from self._timed(begin, end.ts_ns)
            return
        for begin in run.begins:
            run.stacks.setdefault(begin.track, []).append(begin)
        for end in run.ends:
            if stack := run.stacks.get(end.track):
                yield from self._timed(stack.pop(), end.ts_ns)

    def _timed(self, begin: _Slice, end_ns: int) -> Iterator[bytes]:
        return self._event(begin.event, begin.ts_ns, end_ns - begin.ts_ns)

    def _event(self, event: bytes, ts_ns: int, duration_ns: int) -> Iterator[bytes]:
        """The event with its times in microseconds, as exact as they are."""
        begin = ts_ns + self._state.offset_ns
        if not (0 <= begin < _LATEST_NS and 0 <= duration_ns < _LATEST_NS):
            self.found.untimed += 1
            return
        yield event[:-1] + f',"ts":{_microseconds(begin)},"dur":{_microseconds(duration_ns)}}}'.encode()

    def _counters(self, spans: NDArray[np.int64], times: NDArray[np.int64], scopes: list[Scope]) -> Iterator[bytes]:
        """Values of counters as in PyTorch's JSON, each with the beginning of its span as its time."""
        found = self._columns(spans, "events")
        described = found.numbers(_DESCRIBED_BY).tolist()
        rows = found.of(_SAMPLE, BYTES)
        samples = columns(self._whole, found.value[rows], found.end[rows])
        of = samples.numbers(_SAMPLE_OF).tolist()
        whole, exact = _present(samples, _WHOLE_NUMBER, VARINT), _present(samples, _DOUBLE, FIXED64)
        for place, event in enumerate(found.message[rows].tolist()):
            known = self._state.counters.get((scopes[event], described[event]))
            name = None if known is None else known.names.get(of[place])
            value = self._value(whole.get(place), exact.get(place))
            if known is None or name is None or known.device < 0 or value is None:
                self.found.undescribed += 1
                continue
            told = {"ph": "C", "name": name, "pid": f"GPU {known.device} Counters", "args": {"": value}}
            yield from self._event(msgspec.json.encode(told), int(times[event]), 0)

    def _value(self, whole: int | None, exact: int | None) -> float | None:
        if exact is not None:
            value = double(self._data, Field(_DOUBLE, FIXED64, exact, exact + 8))
            return value if math.isfinite(value) else None
        return None if whole is None else float(whole)

    def _stages(self, spans: NDArray[np.int64], times: NDArray[np.int64], scopes: list[Scope]) -> Iterator[bytes]:
        found = self._columns(spans, "events")
        durations, devices, kinds = (found.numbers(number).tolist() for number in (_DURATION, _GPU, _KIND))
        rows = found.of(_EXTRA, BYTES)
        told: dict[int, Arguments] = {}
        pairs = extra_data(self._data, self._whole, found.value[rows], found.end[rows])
        for place, pair in zip(found.message[rows].tolist(), pairs, strict=True):
            if pair is not None:
                told.setdefault(place, {})[pair[0]] = pair[1]
        launches = {int(found.message[row]): row for row in found.of(_LAUNCH, BYTES).tolist()}
        numbers, awaited = found.numbers(_ID).tolist(), dict[int, list[int]]()
        for row in found.of(_WAITS_FOR, VARINT).tolist():
            awaited.setdefault(int(found.message[row]), []).append(int(found.value[row]))
        names = self._names(found, scopes, _STAGE_NAME, _STAGE_NAME_NUMBER)
        kernels = _present(found, _KERNEL, VARINT)
        for place, ts_ns in enumerate(times.tolist()):
            stage = self._state.name(SPECIFICATION, scopes[place], kinds[place]) or ""
            name = names[place] or self._state.name(KERNEL, scopes[place], kernels.get(place, 0)) or stage
            arguments: Arguments = {"device": devices[place], **told.get(place, {})}
            if place in launches:
                row = launches[place]
                arguments |= self._launch(int(found.value[row]), int(found.end[row]), scopes[place])
            category = _CATEGORIES_OF_STAGES.get(stage, "gpu_render_stage")
            stream = arguments.get("stream")
            lane = (devices[place], stream if isinstance(stream, int) else 0)
            self._waits.take(
                numbers[place], Stage(*lane, ts_ns + self._state.offset_ns, durations[place]), awaited.get(place, ())
            )
            yield from self._event(_encoded(category, name or "unnamed", *lane, arguments), ts_ns, durations[place])

    def _launch(self, begin: int, end: int, scope: Scope) -> Arguments:
        key = (self._data[begin:end], scope)
        if key not in self._launches:
            if len(self._launches) >= _MOST_KEPT:
                self._launches.clear()
            try:
                self._launches[key] = launch(self._data, Field(_LAUNCH, BYTES, begin, end), scope, self._state)
            except WireError as error:
                self._damaged(error)
                self._launches[key] = {}
        return self._launches[key]

    def _names(self, found: Columns, scopes: list[Scope], given: int, numbered: int) -> list[str | None]:
        """By event the name that it bears, or that its number stands for."""
        names: list[str | None] = [None] * len(scopes)
        for place, number in _present(found, numbered, VARINT).items():
            names[place] = self._state.name(NAME, scopes[place], number)
        for row in found.of(given, BYTES).tolist():
            part = Field(given, BYTES, int(found.value[row]), int(found.end[row]))
            names[int(found.message[row])] = text(self._data, part, _LONGEST)
        return names


def _present(found: Columns, number: int, wire: int) -> dict[int, int]:
    """The first number in a field of those messages that have it."""
    rows = found.of(number, wire)[::-1]
    return dict(zip(found.message[rows].tolist(), found.value[rows].tolist(), strict=True))


def _encoded(category: str, name: str, pid: int, tid: int, arguments: Arguments) -> bytes:
    return msgspec.json.encode({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "args": arguments})


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
