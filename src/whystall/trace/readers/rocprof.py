"""Reads the JSON of rocprofv3 (``--output-format json``): kernels, copies, calls of HIP and HSA, ranges of roctx.

Only the fields that are declared here are ever decoded: the file also holds the command line, the configuration and the
host's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from whystall.json_text import NotJsonError, parse_json
from whystall.trace.errors import InputError
from whystall.trace.files import Head, Limits, Progress, contents
from whystall.trace.metadata import DeviceProperties, Metadata, sound_text
from whystall.trace.model import Quarantine
from whystall.trace.readers.reader import RawTrace

_MARK: Final = b'"rocprofiler-sdk-tool"'
_GPU: Final = 2
# The whole document and its decoded form are in memory at once.
_MOST_BYTES: Final = 8 << 30
_DAY_NS: Final = 86_400 * 1_000_000_000
_LATEST_NS: Final = 1 << 61
_DIRECTIONS: Final = {
    "HOST_TO_HOST": "HtoH", "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD",
}  # fmt: skip
MARKERS: Final = "MARKER_CORE"
"""Prefix of the kinds of roctx's ranges and marks: others name threads or pause the profiler."""


class _Handle(msgspec.Struct, frozen=True):
    handle: int = 0


class _Extent(msgspec.Struct, frozen=True):
    x: int
    y: int
    z: int


class _Correlation(msgspec.Struct, frozen=True):
    internal: int = 0


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every record; nanoseconds of the system's clock."""

    start_timestamp: int
    end_timestamp: int
    thread_id: int = 0
    kind: int = -1
    operation: int = -1
    correlation_id: _Correlation = _Correlation()


class _Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: _Handle
    queue_id: _Handle = _Handle()
    kernel_id: int
    group_segment_size: int = 0
    workgroup_size: _Extent
    grid_size: _Extent


class _Kernel(_Record, frozen=True, kw_only=True):
    dispatch_info: _Dispatch
    stream_id: _Handle | None = None


class _Copy(_Record, frozen=True, kw_only=True):
    src_agent_id: _Handle
    dst_agent_id: _Handle
    bytes: int | None = None
    stream_id: _Handle | None = None


class _Buffers(msgspec.Struct, frozen=True):
    kernel_dispatch: list[_Kernel] = []
    memory_copy: list[_Copy] = []
    hip_api: list[_Record] = []
    hsa_api: list[_Record] = []
    rccl_api: list[_Record] = []
    marker_api: list[_Record] = []


class _Memory(msgspec.Struct, frozen=True):
    heap_type: int = 0
    size_in_bytes: int = 0


class _Agent(msgspec.Struct, frozen=True, kw_only=True):
    id: _Handle
    type: int
    logical_node_type_id: int = -1
    product_name: str = ""
    name: str = ""
    cu_count: int = 0
    mem_banks: list[_Memory] = []


class _Symbol(msgspec.Struct, frozen=True):
    kernel_id: int
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct, frozen=True):
    key: int = 0
    value: str = ""


class _Strings(msgspec.Struct, frozen=True):
    buffer_records: list[_Kind] = []
    marker_api: list[_Text] = []


class _About(msgspec.Struct, frozen=True):
    pid: int


class _Process(msgspec.Struct, frozen=True):
    metadata: _About
    agents: list[_Agent] = []
    strings: _Strings = _Strings()
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Buffers = _Buffers()


class _Document(msgspec.Struct, frozen=True, rename={"processes": "rocprofiler-sdk-tool"}):
    processes: list[_Process]


class RocprofReader:
    """JSON of AMD's rocprofv3."""

    name = "rocprof"
    version = 2
    describes = "JSON of rocprofv3 (rocprofv3 --output-format json)"
    suffixes = (".json", ".gz")

    def knows(self, head: Head) -> bool:
        """Whether the JSON begins with the tool's name."""
        return head.content.lstrip()[:1] == b"{" and _MARK in head.content[:1024]

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recordings in a file, one for each process. Raises `InputError` where there is none."""
        text, warnings = contents(path, _MOST_BYTES, limits, progress)
        try:
            document = parse_json(text, type=_Document)
        except NotJsonError as error:
            what = warnings[0] if warnings else str(error)
            raise InputError(f"{path.name} is damaged and cannot be read as JSON of rocprofv3 ({what})") from None
        several = len(document.processes) > 1
        found = [
            _recording(process, len(text), warnings, limits=limits, several=several) for process in document.processes
        ]
        if not any(recording.events for recording in found):
            raise InputError(f"{path.name} holds no event of a job")
        return found


def _recording(
    process: _Process, raw_bytes: int, warnings: Sequence[str], *, limits: Limits, several: bool
) -> RawTrace:
    buffers = process.buffer_records
    calls, others = [*buffers.hip_api, *buffers.hsa_api], [*buffers.rccl_api, *_marked(process)]
    records = [*buffers.kernel_dispatch, *buffers.memory_copy, *calls, *others]
    low, high = plausible_times([record.start_timestamp for record in records])
    gpus = {agent.id.handle: agent for agent in process.agents if agent.type == _GPU}
    numbers = sorted({record.thread_id for record in (*calls, *others)})
    threads = {number: row for row, number in enumerate(numbers)}
    events = [*_kernels(process, gpus), *_copies(process, gpus)]
    names = _operations(process)
    told = _marks(process, threads)
    tables = {
        "device_events": _table(events),
        "runtime_calls": _table([_call(one, names, threads) for one in calls]),
        "annotations": _table([*(_told(one, names, threads) for one in buffers.rccl_api), *told["annotations"]]),
        "other_events": _table(told["other_events"]),
    }
    kept = {name: _sound(table[: limits.events], low, high) for name, table in tables.items() if len(table)}
    lost = sum(len(tables[name]) - len(table) for name, table in kept.items())
    pytorch = any("at::native::" in str(event["name"]) for event in events)
    return RawTrace(
        tables=kept,
        threads=pl.DataFrame(
            {
                "pid": [str(process.metadata.pid)] * len(threads),
                "tid": [str(number) for number in threads],
                "name": None,
            },
            schema={"pid": pl.String, "tid": pl.String, "name": pl.String},
        ),
        events=len(records),
        raw_bytes=raw_bytes,
        metadata=Metadata(framework="pytorch" if pytorch else None, devices=_devices(process)),
        process=f"process {process.metadata.pid}" if several else None,
        warnings=warnings,
        quarantined=[Quarantine("times that cannot be true", lost, 0)] if lost else [],
    )


def plausible_times(starts: Sequence[int]) -> tuple[int, int]:
    """The times that belong to a recording, by when its events began: within a day of its middle."""
    ordered = sorted(starts)
    middle = ordered[len(ordered) // 2] if ordered else 0
    return max(min(middle, _LATEST_NS) - _DAY_NS, 0), max(min(middle + _DAY_NS, _LATEST_NS), 0)


def _sound(table: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    end = pl.col("ts_ns") + pl.col("duration_ns")
    return table.filter(pl.col("ts_ns").is_between(low, high) & end.is_between(pl.col("ts_ns"), high))


def _table(rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None) if rows else pl.DataFrame()


def _timed(record: _Record) -> dict[str, object]:
    # A number that 64 bits do not hold is in no recording: it fails the test of times.
    start, end = (time if 0 <= time <= _LATEST_NS else -1 for time in (record.start_timestamp, record.end_timestamp))
    return {"ts_ns": start, "duration_ns": end - start, "correlation": _whole(record.correlation_id.internal)}


def _whole(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= _LATEST_NS else None


def _kernels(process: _Process, gpus: Mapping[int, _Agent]) -> list[dict[str, object]]:
    names = {symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name for symbol in process.kernel_symbols}
    rows = []
    for record in process.buffer_records.kernel_dispatch:
        sent = record.dispatch_info
        group, items = sent.workgroup_size, sent.grid_size
        rows.append(
            {
                **_timed(record),
                "name": sound_text(names.get(sent.kernel_id) or f"unnamed {sent.kernel_id}"),
                "kind": "kernel",
                "device": _number(gpus, sent.agent_id),
                "stream": _stream(record.stream_id, sent.queue_id),
                "bytes": None,
                # The grid counts work items; everywhere else it counts groups of them.
                "grid": f"[{_groups(items.x, group.x)}, {_groups(items.y, group.y)}, {_groups(items.z, group.z)}]",
                "block": f"[{group.x}, {group.y}, {group.z}]",
                "shared_memory_bytes": _whole(sent.group_segment_size),
            }
        )
    return rows


def _groups(items: int, size: int) -> int:
    return -(-items // size) if size > 0 else items


def _stream(stream: _Handle | None, queue: _Handle) -> int:
    """The program's stream, 0 for the default one; older recordings have only the device's queue."""
    return _whole((queue if stream is None else stream).handle) or 0


def _number(gpus: Mapping[int, _Agent], agent: _Handle) -> int | None:
    """A device's number among the machine's."""
    found = gpus.get(agent.handle)
    return None if found is None else _whole(found.logical_node_type_id)


def _copies(process: _Process, gpus: Mapping[int, _Agent]) -> list[dict[str, object]]:
    names = _operations(process)
    rows = []
    for record in process.buffer_records.memory_copy:
        target, source = _number(gpus, record.dst_agent_id), _number(gpus, record.src_agent_id)
        rows.append(
            {
                **_timed(record),
                "name": f"Memcpy {direction(names.get((record.kind, record.operation), ''))}",
                "kind": "memcpy",
                "device": source if target is None else target,
                "stream": _stream(record.stream_id, _Handle()),
                "bytes": _whole(record.bytes),
                "grid": None,
                "block": None,
                "shared_memory_bytes": None,
            }
        )
    return rows


def direction(operation: str) -> str:
    """The way that a copy went, as CUPTI writes it.

    >>> direction("MEMORY_COPY_HOST_TO_DEVICE")
    'HtoD'
    """
    return _DIRECTIONS.get(operation.removeprefix("MEMORY_COPY_"), "Unknown")


def _call(record: _Record, names: Mapping[tuple[int, int], str], threads: Mapping[int, int]) -> dict[str, object]:
    name = names.get((record.kind, record.operation), f"unnamed {record.operation}")
    return {**_timed(record), "name": sound_text(name), "thread": threads[record.thread_id]}


def _told(record: _Record, names: Mapping[tuple[int, int], str], threads: Mapping[int, int]) -> dict[str, object]:
    """A call that is none of the runtime's: nothing that ran on a device is looked for under its number."""
    return {key: value for key, value in _call(record, names, threads).items() if key != "correlation"}


def _marked(process: _Process) -> list[_Record]:
    """The ranges and marks that a program gave roctx."""
    kinds = {number for number, entry in enumerate(process.strings.buffer_records) if entry.kind.startswith(MARKERS)}
    return [record for record in process.buffer_records.marker_api if record.kind in kinds]


def _marks(process: _Process, threads: Mapping[int, int]) -> dict[str, list[dict[str, object]]]:
    """By table the ranges of roctx, and its marks, under the texts that they were given."""
    names, texts = _operations(process), {text.key: text.value for text in process.strings.marker_api}
    found: dict[str, list[dict[str, object]]] = {"annotations": [], "other_events": []}
    for record in _marked(process):
        row = _told(record, names, threads)
        if given := texts.get(record.correlation_id.internal):
            row["name"] = sound_text(given)
        if record.end_timestamp == record.start_timestamp:
            found["other_events"].append(row | {"category": "roctx"})
        else:
            found["annotations"].append(row)
    return found


def _operations(process: _Process) -> dict[tuple[int, int], str]:
    """The names behind the numbers of records' kinds and operations."""
    kinds = enumerate(process.strings.buffer_records)
    return {(kind, number): name for kind, entry in kinds for number, name in enumerate(entry.operations)}


def _devices(process: _Process) -> tuple[DeviceProperties, ...]:
    return tuple(
        DeviceProperties(
            id=_whole(agent.logical_node_type_id) or 0,
            name=sound_text(agent.product_name or agent.name)[:1000] or None,
            memory_bytes=_whole(sum(memory.size_in_bytes for memory in agent.mem_banks)) or None,
            compute_capability=None,
            multiprocessors=agent.cu_count if 0 < agent.cu_count < 1 << 20 else None,
        )
        for agent in process.agents
        if agent.type == _GPU
    )
