"""A snapshot explained: its peak, the peak's holders, idle memory, growth, and returned segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.allocator_settings import recorded_settings
from whystall.memory.batch_room import find_room
from whystall.memory.findings import find
from whystall.memory.growth import find_growth
from whystall.memory.holders import held_by, holders_of
from whystall.memory.lifetimes import BEFORE, Lifetimes, Reserved, allocated_course, lifetimes, reserved_course
from whystall.memory.phases import Phase, Phases, find_phases, with_steps_of
from whystall.memory.purpose import Judge
from whystall.memory.rescue import add_rescues
from whystall.memory.results import AtEnd, DeviceMemory, MemoryReport, Peak, PhasePeak
from whystall.memory.shortage import shortages
from whystall.memory.snapshot import HOST, Action, DeviceRecord, Snapshot, State
from whystall.memory.stacks import Stacks, read_stacks

__all__ = ["explain"]

_CURVE_POINTS: Final = 400
_MOST_ANNOTATIONS: Final = 8
_PHASES: Final = {
    Phase.SETUP: "set-up",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
}


def explain(snapshot: Snapshot, holders: int = 200, device_bytes: int | None = None) -> MemoryReport:
    """Explain each device of the snapshot, with the ``holders`` that hold most at the peak.

    No snapshot has the memory that a device has in all: ``device_bytes`` gives it, where it is known.
    """
    stacks = read_stacks(snapshot.frames)
    found = [(record, find_phases(record, stacks)) for record in snapshot.devices]
    devices = [pair for pair in found if pair[0].device != HOST]
    timed = [
        (record, with_steps_of(devices, record, phases) if record.device == HOST else phases)
        for record, phases in found
    ]
    told = snapshot.settings.get("last_allocator_settings")
    return MemoryReport(
        file=snapshot.name,
        devices=tuple(_device(snapshot, record, phases, stacks, holders, device_bytes) for record, phases in timed),
        settings=told if isinstance(told, str) and told else None,
        warnings=snapshot.warnings,
    )


def _device(
    snapshot: Snapshot, record: DeviceRecord, phases: Phases, stacks: Stacks, most: int, device_bytes: int | None
) -> DeviceMemory:
    events = record.events
    settings = recorded_settings(snapshot.settings)
    alive = lifetimes(record, settings)
    course, reserved = allocated_course(alive, len(events)), reserved_course(record)
    fits = reserved is None or reserved.holds(course)
    reserved = reserved if fits else None
    growth, why_none = find_growth(alive, course, phases, stacks)
    judge = Judge(record, alive, stacks, phases)
    outs = tuple(shortages(record, stacks, course, reserved, device_bytes))
    if outs:
        last = add_rescues(outs[-1], record, alive, stacks, judge, settings, snapshot.texts)
        outs = (*outs[:-1], last)
    room, why_no_room = (
        (None, "nothing of a batch is kept in it for the backward pass")
        if record.device == HOST
        else find_room(alive, course, phases, judge, outs, device_bytes)
    )
    unmatched = (alive.begin == BEFORE) & (alive.end < len(events))
    before = alive.begin == BEFORE
    bursts, given_bytes, pressed, retried = _given_back(record)
    told = DeviceMemory(
        device="pinned host memory" if record.device == HOST else f"device {record.device}",
        events=len(events),
        recorded_ns=record.since_start_ns(len(events) - 1),
        allocations=int((~before).sum()),
        baseline_bytes=int(alive.size[before].sum()),
        unmatched_frees=int(unmatched.sum()),
        unmatched_free_bytes=int(alive.size[unmatched].sum()),
        lost=alive.lost,
        peak=_peak(snapshot, record, alive, (phases, stacks, judge), (course, reserved), most),
        at_end=_at_end(record),
        end_allocated_bytes=int(course[-1]) if len(course) else int(alive.size.sum()),
        growth=growth,
        no_growth_because=why_none,
        steps=len(phases.steps),
        batch=room,
        no_batch_because=why_no_room,
        given_back=bursts,
        given_back_bytes=given_bytes,
        given_back_under_pressure=pressed,
        retried_bytes=retried,
        out_of_memory=outs,
        curve=_curve(course),
        phases=tuple(_by_phase(phases, course)),
        findings=(),
        notes=tuple(_notes(record, alive, phases, fits=fits)),
    )
    return replace(told, findings=find(record, alive, reserved, told, settings))


def _peak(
    snapshot: Snapshot,
    record: DeviceRecord,
    alive: Lifetimes,
    known: tuple[Phases, Stacks, Judge],
    courses: tuple[NDArray[np.int64], Reserved | None],
    most: int,
) -> Peak:
    phases, stacks, judge = known
    course, reserved = courses
    row = int(np.argmax(course)) if len(course) else None
    rows = np.arange(len(alive)) if row is None else np.flatnonzero(alive.alive_at(row))
    there = alive.chosen(rows)
    purposes = judge.of(rows, row)
    holders = holders_of(there, purposes, stacks, snapshot.texts)
    phase = Phase.UNKNOWN if row is None else Phase(int(phases.at[row]))
    guessed = phase == Phase.BACKWARD and phases.stackless_is_backward
    return Peak(
        event=row,
        at_ns=None if row is None else record.since_start_ns(row),
        allocated_bytes=int(there.size.sum()),
        reserved_bytes=None if reserved is None or row is None else reserved.at(row),
        phase=_PHASES.get(phase),
        phase_known_by=None if phase == Phase.UNKNOWN else _known_by(guessed),
        annotations=() if row is None else _annotations_at(record, row),
        step=_step_of(phases, row),
        held=held_by(purposes.category, there.size),
        holders=tuple(holders[:most]),
        holders_left_out=max(len(holders) - most, 0),
    )


def _by_phase(phases: Phases, course: NDArray[np.int64]) -> Iterator[PhasePeak]:
    for phase, name in _PHASES.items():
        inside = course[phases.at == phase]
        if len(inside):
            yield PhasePeak(name, int(inside.max()))


def _known_by(guessed: bool) -> str:
    return (
        "allocations without a Python frame, as autograd's own thread makes them"
        if guessed
        else "torch's functions on the stack"
    )


def _step_of(phases: Phases, row: int | None) -> int | None:
    if row is None or phases.known_by is None:
        return None
    return int(np.searchsorted(phases.steps, row, side="right"))


def _annotations_at(record: DeviceRecord, row: int) -> tuple[str, ...]:
    """The named spans around an event, the outermost first."""
    if record.events.time_us is None:
        return ()
    time = int(record.events.time_us[row])
    around = [
        span for span in record.annotations if span.start_us <= time and (span.end_us is None or span.end_us >= time)
    ]
    closed = [span.name for span in around if span.end_us is not None]
    return tuple(closed[-_MOST_ANNOTATIONS:])


def _at_end(record: DeviceRecord) -> AtEnd | None:
    """Where the memory was when the snapshot was made."""
    segments, blocks = record.segments, record.blocks
    if not len(segments):
        return None
    free = blocks.state == State.INACTIVE
    used = np.zeros(len(segments), np.int64)
    np.add.at(used, blocks.segment[~free], blocks.size[~free])
    in_blocks = np.zeros(len(segments), np.int64)
    np.add.at(in_blocks, blocks.segment, blocks.size)
    # An old file may list no free blocks: memory outside all blocks is free, too.
    idle = np.maximum(segments.total, in_blocks) - used
    active = blocks.state == State.ACTIVE
    allocated = int(blocks.size[active].sum())
    return AtEnd(
        reserved_bytes=int(np.maximum(segments.total, in_blocks).sum()),
        allocated_bytes=allocated,
        awaiting_bytes=int(used.sum()) - allocated,
        fragmented_bytes=int(idle[used > 0].sum()),
        cached_bytes=int(idle[used == 0].sum()),
        rounding_bytes=allocated - int(blocks.requested[active].sum()),
        segments=len(segments),
        largest_free_bytes=int(blocks.size[free].max(initial=0)),
        expandable=bool(segments.is_expandable.any()),
    )


def _given_back(record: DeviceRecord) -> tuple[int, int, int, int | None]:
    """Returns of segments to the device: their number, their bytes, the requests right after, the largest of these.

    When the device refuses, the allocator returns cached segments and requests again, at the cost of a synchronisation.
    A return without a request after it is ``empty_cache``.
    """
    action = record.events.action
    shrinks = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    if not shrinks.any():
        return 0, 0, 0, None
    ends = np.flatnonzero(shrinks & ~np.append(shrinks[1:], False))
    follower = np.append(action, np.int8(Action.UNKNOWN))[ends + 1]
    served = np.isin(follower, [Action.SEGMENT_ALLOC, Action.SEGMENT_MAP])
    asked = served | (follower == Action.OOM)
    sizes = record.events.size[ends[served] + 1]
    given = int(record.events.size[shrinks].astype(np.int64).sum())
    return len(ends), given, int(asked.sum()), int(sizes.max()) if len(sizes) else None


def _curve(course: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Events and bytes; of many events the highest of each stretch, so that peaks stay."""
    if len(course) <= _CURVE_POINTS:
        return tuple(enumerate(course.tolist()))
    edges = np.linspace(0, len(course), _CURVE_POINTS + 1).astype(np.int64).tolist()
    rows = [begin + int(np.argmax(course[begin:end])) for begin, end in pairwise(edges)]
    return tuple((row, int(course[row])) for row in rows)


def _notes(record: DeviceRecord, alive: Lifetimes, phases: Phases, *, fits: bool) -> Iterator[str]:
    """Limits of the explanation."""
    if not fits:
        yield "its events allocate more than its segments hold: what was reserved at the time is not known"
    if not len(record.events):
        yield "no events were recorded: what is said is of the moment of the snapshot"
    elif not (alive.stack >= 0).any():
        yield "no call stacks were recorded, so the purpose of memory is unknown"
    if len(record.events) and not len(record.segments):
        yield "the snapshot lists no segments: what was allocated before the record and lived on is not known"
    if alive.lost:
        yield f"{alive.lost:,} allocations have no end in the record: their addresses were handed out again"
    if phases.stackless_is_backward:
        yield "allocations without a Python frame are taken for the backward pass: autograd's own thread has none"
