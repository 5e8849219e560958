"""Streams of a device: first in, first out, with events between them, meetings of ranks, and contention."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.accuracy.simulator.engine import Clock, Signal

_FULL_RATE = 1_000


class Meeting:
    """A collective: it ends on all ranks at once, ``transfer_ns`` after the last has arrived."""

    def __init__(self, members: int, transfer_ns: int) -> None:
        self.members = members
        self.transfer_ns = transfer_ns
        self.arrived: list[tuple[Device, Activity]] = []


@dataclass(slots=True)
class Activity:
    """One kernel, copy or set on a stream."""

    category: str
    name: str
    work_ns: int
    stream: int
    arguments: dict[str, Any] = field(default_factory=dict)
    meeting: Meeting | None = None
    gap_ns: int | None = None
    correlation: int = 0
    start_ns: int = -1
    end_ns: int = -1
    done: Signal = field(default_factory=Signal)
    step: int = -1


@dataclass(slots=True)
class _Wait:
    signal: Signal


@dataclass(slots=True)
class _Record:
    signal: Signal


class _Stream:
    def __init__(self) -> None:
        self.queue: deque[Activity | _Wait | _Record] = deque()
        self.running: Activity | None = None
        self.blocked = False
        self.free_at = -1_000_000
        self.last: Activity | None = None


class Device:
    """Executes what is submitted; ``activities`` holds what ran."""

    def __init__(self, clock: Clock, *, gap_ns: int, event_latency_ns: int, slows_compute_milli: int) -> None:
        self.clock = clock
        self.activities: list[Activity] = []
        self.outstanding = 0
        self.room = Signal()
        self._gap_ns = gap_ns
        self._event_latency_ns = event_latency_ns
        self._slowed_rate = _FULL_RATE * 1_000 // slows_compute_milli
        self._streams: dict[int, _Stream] = {}
        self._computing: dict[int, tuple[Activity, _Stream, int, int]] = {}
        self._transfers = 0
        self._version: dict[int, int] = {}

    def submit(self, activity: Activity, *, visible_ns: int) -> None:
        """Queue work that the device sees from a time on."""
        stream = self._stream(activity.stream)
        stream.last = activity
        self.outstanding += 1
        self.activities.append(activity)
        self.clock.at(visible_ns, partial(self._push, stream, activity))

    def record(self, stream: int, *, visible_ns: int) -> Signal:
        """The signal that fires when all that was queued before is done."""
        signal = Signal()
        self.clock.at(visible_ns, partial(self._push, self._stream(stream), _Record(signal)))
        return signal

    def wait(self, stream: int, signal: Signal, *, visible_ns: int) -> None:
        """Let a stream wait."""
        self.clock.at(visible_ns, partial(self._push, self._stream(stream), _Wait(signal)))

    def last_of(self, stream: int | None) -> list[Activity]:
        """What was submitted last and still runs: on a stream, or on each."""
        streams = self._streams.values() if stream is None else [self._stream(stream)]
        return [each.last for each in streams if each.last and not each.last.done.fired]

    def _stream(self, number: int) -> _Stream:
        return self._streams.setdefault(number, _Stream())

    def _push(self, stream: _Stream, item: Activity | _Wait | _Record) -> None:
        stream.queue.append(item)
        self._advance(stream)

    def _advance(self, stream: _Stream) -> None:
        while stream.queue and stream.running is None and not stream.blocked:
            item = stream.queue.popleft()
            if isinstance(item, _Record):
                item.signal.fire()
            elif isinstance(item, _Wait):
                if not item.signal.fired:
                    stream.blocked = True
                    item.signal.then(partial(self._after_latency, stream))
            else:
                stream.running = item
                gap_ns = self._gap_ns if item.gap_ns is None else item.gap_ns
                self.clock.at(max(self.clock.now, stream.free_at + gap_ns), partial(self._start, stream, item))

    def _after_latency(self, stream: _Stream) -> None:
        self.clock.at(self.clock.now + self._event_latency_ns, partial(self._unblock, stream))

    def _unblock(self, stream: _Stream) -> None:
        stream.blocked = False
        self._advance(stream)

    def _start(self, stream: _Stream, activity: Activity) -> None:
        activity.start_ns = self.clock.now
        if activity.meeting is not None:
            self._arrive(activity, activity.meeting)
            activity.done.then(partial(self._free, stream))
        elif activity.category == "kernel":
            self._computing[id(activity)] = (activity, stream, activity.work_ns * _FULL_RATE, self.clock.now)
            self._plan_end(activity)
        else:
            self.clock.at(self.clock.now + activity.work_ns, partial(self._finish, stream, activity))

    def _arrive(self, activity: Activity, meeting: Meeting) -> None:
        meeting.arrived.append((self, activity))
        if len(meeting.arrived) < meeting.members:
            return
        for device, _ in meeting.arrived:
            device.transferring(+1)
        self.clock.at(self.clock.now + meeting.transfer_ns, partial(_part, meeting))

    def transferring(self, change: int) -> None:
        """Communication begins or ends: what computes is slowed while there is any."""
        before, self._transfers = self._rate(), self._transfers + change
        if before == self._rate():
            return
        for key, (activity, stream, remaining, since) in list(self._computing.items()):
            left = remaining - (self.clock.now - since) * before
            self._computing[key] = (activity, stream, left, self.clock.now)
            self._plan_end(activity)

    def _rate(self) -> int:
        return self._slowed_rate if self._transfers else _FULL_RATE

    def _plan_end(self, activity: Activity) -> None:
        _, stream, remaining, _ = self._computing[id(activity)]
        version = self._version[id(activity)] = self._version.get(id(activity), 0) + 1
        end_ns = self.clock.now + max(0, -(-remaining // self._rate()))
        self.clock.at(end_ns, partial(self._end_if_current, stream, activity, version))

    def _end_if_current(self, stream: _Stream, activity: Activity, version: int) -> None:
        if self._version.get(id(activity)) == version and id(activity) in self._computing:
            del self._computing[id(activity)]
            self._finish(stream, activity)

    def _finish(self, stream: _Stream, activity: Activity) -> None:
        self.complete(activity)
        self._free(stream)

    def complete(self, activity: Activity) -> None:
        """An activity ends now."""
        activity.end_ns = self.clock.now
        self.outstanding -= 1
        room, self.room = self.room, Signal()
        room.fire()
        activity.done.fire()

    def _free(self, stream: _Stream) -> None:
        stream.running = None
        stream.free_at = self.clock.now
        self._advance(stream)


def _part(meeting: Meeting) -> None:
    for device, activity in meeting.arrived:
        device.transferring(-1)
        device.complete(activity)
