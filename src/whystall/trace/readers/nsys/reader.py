"""Reads exports of Nsight Systems, a database or a folder of Parquet files: a recording for each process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from whystall.trace.errors import InputError
from whystall.trace.files import Head, Limits, Progress
from whystall.trace.metadata import DeviceProperties, Metadata
from whystall.trace.readers.database import Database, has_table
from whystall.trace.readers.nsys.counters import read_counters
from whystall.trace.readers.nsys.device import read_device_events
from whystall.trace.readers.nsys.export import TABLES, TEXTS, Export, process_number
from whystall.trace.readers.nsys.host import read_calls, read_overhead, read_synchronizations
from whystall.trace.readers.nsys.nvtx import read_ranges
from whystall.trace.readers.nsys.payloads import with_collectives
from whystall.trace.readers.nsys.target import base_of, devices_of, own_devices
from whystall.trace.readers.nsys.threads import thread_table, with_threads
from whystall.trace.readers.parquet import MAGIC, SUFFIX, ParquetFolder, files_of
from whystall.trace.readers.reader import RawTrace, Whole
from whystall.trace.readers.table_source import TableSource
from whystall.trace.schema import OPTIONAL, REQUIRED

_MARKS: Final = (b"CUPTI_ACTIVITY_KIND_", b"NVTX_EVENTS", b"TARGET_INFO_SESSION_START_TIME")
_STANDS_FOR_ALL: Final = f"{TEXTS}{SUFFIX}"
_PYTORCH: Final = ("aten::", "at::native::")
_WARP: Final = 32
_Tables = dict[str, pl.DataFrame]


class NsysReader:
    """Databases of NVIDIA Nsight Systems."""

    name = "nsys"
    version = 4
    describes = "SQLite exports of Nsight Systems (nsys export --type sqlite)"
    suffixes = (".sqlite",)

    def knows(self, head: Head) -> bool:
        """Whether it is a database with a table of the exports."""
        return has_table(head, *_MARKS)

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recordings in a file, one for each process. Raises `InputError` where there is none."""
        size = path.stat().st_size
        with Database(path, TABLES, limits) as database:
            return _recordings_in(database, path.name, size, progress)


class NsysFolderReader:
    """Folders of NVIDIA Nsight Systems with a Parquet file for each table; the one of texts stands for all."""

    name = "nsys-parquet"
    version = 3
    describes = "Parquet exports of Nsight Systems (nsys export --type parquetdir, the folder *_pqtdir)"
    suffixes = (_STANDS_FOR_ALL,)

    def whole_of(self, path: Path) -> Whole | None:
        """The tables of the named folder, or of a table's file's folder; ``None`` for anything else."""
        folder = path if path.is_dir() else path.parent
        if path != folder and not (path.suffix == SUFFIX and path.is_file()):
            return None
        tables = files_of(folder, TABLES)
        if TEXTS not in tables or len(tables) == 1:
            return None
        others = sorted(file for table, file in tables.items() if table != TEXTS)
        return Whole(folder.absolute().name, (tables[TEXTS], *others))

    def knows(self, head: Head) -> bool:
        """Whether it is a Parquet file with those of other tables beside it."""
        return head.content.startswith(MAGIC) and self.whole_of(head.path) is not None

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recordings in a folder, one for each process. Raises `InputError` where there is none."""
        tables = ParquetFolder(path.parent, TABLES, limits)
        return _recordings_in(tables, path.parent.absolute().name, tables.size, progress)


def _recordings_in(source: TableSource, name: str, size: int, progress: Progress | None) -> list[RawTrace]:
    """The recordings in an export of this name and size."""
    export = Export(source)
    tables = _read(export)
    if progress is not None:
        progress(size, size)
    processes, left_out = _processes(tables)
    if not processes:
        raise InputError(f"{name} holds no event of a job{_because(source.warnings)}")
    recordings = _recordings(export, tables, processes, size)
    # Problems of the file are reported once, with its first process.
    set_aside = export.quarantine()
    first = dataclasses.replace(
        recordings[0],
        events=recordings[0].events + sum(entry.events for entry in set_aside),
        warnings=(*source.warnings, *left_out),
        quarantined=set_aside,
        truncated=source.truncated,
    )
    return [first, *recordings[1:]]


def _because(warnings: Sequence[str]) -> str:
    return f": {warnings[0]}" if warnings else ""


def _read(export: Export) -> _Tables:
    """The tables of all processes, with their processes and identifiers of threads."""
    devices, calls = read_device_events(export), read_calls(export)
    return {
        "device_events": with_collectives(devices, calls, export),
        "runtime_calls": calls,
        "synchronizations": read_synchronizations(export, devices),
        **_joined(read_ranges(export), "other_events", read_overhead(export)),
    }


def _joined(tables: _Tables, table: str, more: pl.DataFrame) -> _Tables:
    return {**tables, table: pl.concat([tables[table], more.select(tables[table].columns)])}


def _processes(tables: _Tables) -> tuple[list[int], list[str]]:
    """The processes that used a device, by device and number, or all where none did; and a sentence on the others.

    Loader workers and launchers call nothing on a device: they are no ranks.
    """
    counts = pl.concat([table.select("process") for table in tables.values()])["process"].value_counts(name="events")
    used = tables["device_events"].group_by("process").agg(pl.col("device").min())
    if used.is_empty():
        return counts["process"].sort().to_list(), []
    others = counts.join(used, on="process", how="anti")
    sentence = f"{len(others):,} processes used no device and are left out ({others['events'].sum():,} events)"
    return used.sort("device", "process")["process"].to_list(), [sentence] if len(others) else []


def _recordings(export: Export, tables: _Tables, processes: Sequence[int], size: int) -> list[RawTrace]:
    first_ns = min(table["ts_ns"].sort()[0] for table in tables.values() if len(table))
    base_ns = base_of(export, first_ns)
    threads = thread_table(export, tables)
    devices = devices_of(export)
    counters = read_counters(export, first_ns)
    return [
        _recording(
            {name: _timed(table.filter(pl.col("process") == process), base_ns) for name, table in tables.items()},
            None if counters is None else _timed(counters.of(process, first=process == processes[0]), base_ns),
            threads.filter(pl.col("process") == process),
            process=None if len(processes) == 1 else f"process {process_number(process)}",
            devices=own_devices(devices, process),
            size=size,
        )
        for process in processes
    ]


def _timed(table: pl.DataFrame, base_ns: int) -> pl.DataFrame:
    return table.with_columns(pl.col("ts_ns") + base_ns)


def _recording(
    tables: _Tables,
    counters: pl.DataFrame | None,
    threads: pl.DataFrame,
    *,
    process: str | None,
    devices: tuple[DeviceProperties, ...],
    size: int,
) -> RawTrace:
    tables = {name: with_threads(table, threads) for name, table in tables.items() if len(table)}
    if "device_events" in tables:
        tables["device_events"] = _per_processor(tables["device_events"], devices)
    names = [tables[name]["name"] for name in ("operators", "device_events") if name in tables]
    events = sum(map(len, tables.values()))
    if counters is not None:
        tables["counters"] = counters
    pytorch = any(column.str.contains_any(list(_PYTORCH)).any() for column in names)
    return RawTrace(
        tables={name: _of_schema(name, table) for name, table in tables.items()},
        threads=threads.select("pid", "tid", "name"),
        events=events,
        raw_bytes=size,
        metadata=Metadata(framework="pytorch" if pytorch else None, devices=devices),
        process=process,
    )


def _per_processor(events: pl.DataFrame, devices: Sequence[DeviceProperties]) -> pl.DataFrame:
    """With the blocks and warps of kernels per multiprocessor, where it is known how many a device has."""
    processors = {one.id: one.multiprocessors for one in devices if one.multiprocessors}
    if not processors:
        return events
    count = pl.col("device").replace_strict(processors, default=None, return_dtype=pl.Float64)
    warps = (pl.col("threads") + _WARP - 1) // _WARP
    return events.with_columns(
        (pl.col("blocks") / count).alias("blocks_per_sm"), (pl.col("blocks") * warps / count).alias("warps_per_sm")
    )


def _of_schema(name: str, table: pl.DataFrame) -> pl.DataFrame:
    kept = {*REQUIRED[name], *OPTIONAL[name], "thread"}
    return table.select(column for column in table.columns if column in kept)
