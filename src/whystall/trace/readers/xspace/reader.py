"""Reads an XSpace, the profile of XLA: one process with all its devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from whystall.trace.errors import InputError
from whystall.trace.files import Head, Limits, Progress, contents, most_parts
from whystall.trace.metadata import Metadata
from whystall.trace.model import Quarantine
from whystall.trace.readers.protobuf import BYTES, VARINT, WireError, fields
from whystall.trace.readers.reader import MarkedSteps, RawTrace
from whystall.trace.readers.xspace.device import device_events, device_steps, number_of, properties_of
from whystall.trace.readers.xspace.host import (
    host_events,
    host_steps,
    host_tables,
    host_threads,
    is_host,
    thread_table,
)
from whystall.trace.readers.xspace.space import Plane, Space, decode
from whystall.trace.steps import STEP_SCHEMA

# The size limit of protocol buffers, for reading and writing.
_MOST_BYTES: Final = 2 << 30
# A recorded event takes some thirty bytes: no file that can be read holds more.
_MOST_EVENTS: Final = 1 << 25
_PLANE, _ID, _NAME = 1, 1, 2
_PLANES: Final = (b"/host:", b"/device:", b"Task Environment")
_BEGAN: Final = "profile_start_time"
_DAY_NS: Final = 86_400 * 1_000_000_000
_YEAR_2000_NS: Final = 946_684_800 * 1_000_000_000
_LATEST_NS: Final = 1 << 61
_Tables = dict[str, pl.DataFrame]


class XSpaceReader:
    """Profiles of XLA."""

    name = "xspace"
    version = 1
    describes = "profiles of XLA and JAX (*.xplane.pb)"
    suffixes = (".xplane.pb",)

    def knows(self, head: Head) -> bool:
        """Whether the file begins with a plane: a message that has such a name, and nothing before it but a number."""
        try:
            plane = next(fields(head.content, 0, len(head.content)))
            if (plane.number, plane.wire) != (_PLANE, BYTES):
                return False
            for one in fields(head.content, plane.value, plane.end):
                if (one.number, one.wire) == (_NAME, BYTES):
                    return head.content[one.value : one.end].startswith(_PLANES)
                if (one.number, one.wire) != (_ID, VARINT):
                    return False
        except (WireError, StopIteration):
            return False
        return False

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recording in a file. Raises `InputError` where it holds none."""
        data, warnings = contents(path, _MOST_BYTES, limits, progress)
        space = decode(data, min(limits.events, most_parts(path, limits, _MOST_EVENTS)))
        recording = _recording(space, len(data), warnings)
        if "device_events" not in recording.tables:
            # XLA runs CPU work on threads of a pool, among waits: no line separates the two.
            why = "in a job on the CPU alone an XLA profile does not separate work from waiting"
            why = f"it is damaged ({space.damage})" if space.damage else why
            raise InputError(f"{path.name} holds no event of a GPU or a TPU: {why}")
        return (recording,)


def _recording(space: Space, raw_bytes: int, warnings: Sequence[str]) -> RawTrace:
    devices = [(plane, number) for plane in space.planes if (number := number_of(plane)) is not None]
    hosts = [plane for plane in space.planes if is_host(plane)]
    threads = host_threads(hosts)
    host = host_events(hosts, threads)
    told = [device_events(plane, number) for plane, number in devices]
    tables = {
        "device_events": pl.concat([events for events, _ in told]) if told else pl.DataFrame(),
        "device_annotations": pl.concat([ranges for _, ranges in told]) if told else pl.DataFrame(),
        **host_tables(host),
    }
    tables = {name: table for name, table in tables.items() if len(table)}
    low, high = _plausible(tables)
    base_ns = _base(space.planes, low)
    kept = {name: _timed(table, low, high, base_ns) for name, table in tables.items()}
    lost = sum(map(len, tables.values())) - sum(map(len, kept.values()))
    steps = _steps(host, [plane for plane, _ in devices])
    used = sum(map(len, tables.values())) + sum(len(device_steps(plane)) for plane, _ in devices)
    return RawTrace(
        tables={name: table for name, table in kept.items() if len(table)},
        threads=thread_table(threads),
        events=space.events,
        raw_bytes=raw_bytes,
        metadata=Metadata(framework="xla", devices=tuple(properties_of(plane, number) for plane, number in devices)),
        truncated=space.damage is not None or space.full,
        warnings=[*warnings, *_notes(space, used, steps)],
        quarantined=[Quarantine("times that cannot be true", lost, 0)] if lost else [],
        steps=MarkedSteps(_timed(steps.table, low, high, base_ns), steps.marked_by, of_device=steps.of_device),
    )


def _plausible(tables: _Tables) -> tuple[int, int]:
    """The times that belong to the recording: within a day of its middle."""
    if not tables:
        return 0, 0
    starts = pl.concat([table["ts_ns"] for table in tables.values()]).sort()
    middle = max(min(int(starts[len(starts) // 2]), _LATEST_NS), -_DAY_NS)
    return middle - _DAY_NS, min(middle + _DAY_NS, _LATEST_NS)


def _timed(table: pl.DataFrame, low: int, high: int, base_ns: int) -> pl.DataFrame:
    end = pl.col("ts_ns") + pl.col("duration_ns")
    sound = pl.col("ts_ns").is_between(low, high) & end.is_between(pl.col("ts_ns"), high)
    return table.filter(sound).with_columns(pl.col("ts_ns") + base_ns)


def _base(planes: Sequence[Plane], earliest_ns: int) -> int:
    """The nanoseconds since 1970 that times count from: the profile's start, where lines do not count from 1970."""
    began = next((plane.numbers[_BEGAN] for plane in planes if _BEGAN in plane.numbers), 0)
    return began if _YEAR_2000_NS < began < _LATEST_NS and earliest_ns < _YEAR_2000_NS else 0


def _steps(host: pl.DataFrame, devices: Sequence[Plane]) -> MarkedSteps:
    """The steps that the job marked or, failing that, those that its first device was seen to do."""
    marked = host_steps(host)
    if len(marked):
        return MarkedSteps(marked, "marks of steps on the host (jax.profiler.StepTraceAnnotation)")
    done = next((steps for plane in devices if len(steps := device_steps(plane))), None)
    if done is None:
        return MarkedSteps(marked, None)
    rows = done.sort("ts_ns").with_columns(pl.format("step {}", "name").alias("name"), pl.lit(-1).alias("thread"))
    table = rows.select(pl.col(column).cast(dtype) for column, dtype in STEP_SCHEMA.items())
    return MarkedSteps(table, "the device's line of steps", of_device=True)


def _notes(space: Space, used: int, steps: MarkedSteps) -> list[str]:
    """Sentences on damage, and on events that were left out."""
    notes = []
    if space.damage:
        notes.append(f"the file is damaged or ends early ({space.damage}): what could be read is kept")
    if space.full:
        notes.append(f"the file holds more than is read ({space.events:,} events): the rest is left out")
    if space.complaints:
        notes.append(
            f"the profiler noted {space.complaints:,} errors and warnings of its own in the file (xprof shows them)"
        )
    if space.unnamed:
        notes.append(f"the names of {space.unnamed:,} events are not in the file: what they are is not known")
    if space.counted:
        notes.append(f"{space.counted:,} events were only counted, without times: they are left out")
    others = space.events - space.counted - used
    if others > 0:
        notes.append(f"{others:,} events of lines that repeat others, or are of no device that is known, are left out")
    if len(steps.table) and not steps.of_device:
        notes.append(
            "XLA starts work on threads of its own: the end of a step's work may be counted to the step after it"
        )
    if not any(map(is_host, space.planes)):
        notes.append("the host was not recorded: why a device waited is not known")
    return notes
