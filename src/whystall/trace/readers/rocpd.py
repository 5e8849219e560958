"""Reads rocpd, the SQLite format of rocprofv3: kernels, copies, calls of HIP and HSA, ranges of roctx.

The names of the tables end in the identifier of a run, and a file may hold several. Its views are never used. Records
are joined as the writer fills them in (rocprofiler-sdk, source/lib/output/generateRocpd.cpp): ``stack_id`` of an event
is the number that a call and its launches share, ``pid`` and ``tid`` are the system's own numbers. The table of
processes, which holds command and environment, is never read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from whystall.json_text import NotJsonError, parse_json
from whystall.trace.errors import InputError
from whystall.trace.files import Head, Limits, Progress
from whystall.trace.metadata import DeviceProperties, Metadata, sound_text
from whystall.trace.model import Quarantine
from whystall.trace.readers.database import Database, has_table
from whystall.trace.readers.reader import RawTrace

_KERNELS: Final = "rocpd_kernel_dispatch"
_REGIONS: Final = "rocpd_region"
_COPIES: Final = "rocpd_memory_copy"
_EVENTS: Final = "rocpd_event"
_TEXTS: Final = "rocpd_string"
_AGENTS: Final = "rocpd_info_agent"
_SYMBOLS: Final = "rocpd_info_kernel_symbol"
_BASES: Final = (_KERNELS, _REGIONS, _COPIES, _EVENTS, _TEXTS, _AGENTS, _SYMBOLS)
_TIMED: Final = ("start", "end", "pid", "tid", "event_id")
_SIZES: Final = tuple(f"{of}_size_{axis}" for of in ("grid", "workgroup") for axis in "xyz")
_DAY_NS: Final = 86_400 * 1_000_000_000
_LATEST_NS: Final = 1 << 61


class _Message(msgspec.Struct):
    message: str = ""


class RocpdReader:
    """Databases of AMD's rocprofv3."""

    name = "rocpd"
    version = 1
    describes = "rocpd databases (rocprofv3 --output-format rocpd)"
    suffixes = (".db",)

    def knows(self, head: Head) -> bool:
        """Whether it is a database with a table of rocpd."""
        return has_table(head, b"rocpd_kernel_dispatch", b"rocpd_region")

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recordings in a file, one for each process. Raises `InputError` where there is none."""
        size = path.stat().st_size
        with Database(path, (), limits) as database:
            listed = database.listed
        runs = sorted({name.removeprefix(base) for name in listed for base in _BASES[:3] if _is_of(name, base)})
        with Database(path, [base + run for base in _BASES for run in runs], limits) as database:
            found = [recording for run in runs for recording in _Run(database, run).recordings(size)]
            warnings, truncated = tuple(database.warnings), database.truncated
        if progress is not None:
            progress(size, size)
        if not found:
            raise InputError(f"{path.name} holds no event of a job{f': {warnings[0]}' if warnings else ''}")
        found[0].warnings, found[0].truncated = warnings, truncated
        if len(found) == 1:
            found[0].process = None
        return found


def _is_of(name: str, base: str) -> bool:
    return re.fullmatch(rf"{base}(_\w+)?", name) is not None


class _Run:
    """The tables of one run."""

    def __init__(self, database: Database, run: str) -> None:
        self._database = database
        self._run = run
        self._lost = 0
        events = self._read(_EVENTS, "id", "stack_id", "category_id").drop_nulls("id").unique("id", keep="none")
        self._events = events.rename({"id": "event_id", "stack_id": "correlation"})
        agents = database.read(_AGENTS + run, {"id": int, "type": str, "type_index": int, "product_name": str})
        self._gpus = agents.filter(pl.col("type") == "GPU").drop_nulls(["id", "type_index"]).unique("id", keep="none")

    def recordings(self, size: int) -> list[RawTrace]:
        """A recording for each process that used a device, or for each where none did."""
        events = pl.concat([self._kernels(), self._copies()])
        calls, ranges = self._regions()
        used = events if len(events) else pl.concat([calls.select("pid"), ranges.select("pid")])
        found = []
        for pid in used["pid"].unique().sort().to_list():
            own = [table.filter(pl.col("pid") == pid) for table in (events, calls, ranges)]
            found.append(self._recording(pid, own[0], own[1], own[2], size))
        if found and self._lost:
            found[0].quarantined = [Quarantine("times that cannot be true", self._lost, 0)]
        return found

    def _recording(
        self, pid: int, events: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame, size: int
    ) -> RawTrace:
        tids = pl.concat([calls["tid"], ranges["tid"]]).unique().sort()
        rows = tids.to_frame().with_row_index("thread").with_columns(pl.col("thread").cast(pl.Int32))
        tables = {
            "device_events": events,
            "runtime_calls": calls.join(rows, on="tid", how="left"),
            "annotations": ranges.join(rows, on="tid", how="left").drop("correlation"),
        }
        pytorch = bool(events["name"].str.contains("at::native::", literal=True).any())
        devices = self._gpus.sort("type_index").select("type_index", "product_name").rows()
        return RawTrace(
            tables={name: table.drop("pid", "tid") for name, table in tables.items() if len(table)},
            threads=pl.DataFrame({"pid": str(pid), "tid": tids.cast(pl.String), "name": None}),
            events=len(events) + len(calls) + len(ranges),
            raw_bytes=size,
            process=f"process {pid}",
            metadata=Metadata(
                framework="pytorch" if pytorch else None,
                devices=tuple(
                    DeviceProperties(number, sound_text(name or "")[:1000] or None, None, None, None)
                    for number, name in devices
                ),
            ),
        )

    def _read(self, base: str, *columns: str, needed: Sequence[str] = ()) -> pl.DataFrame:
        return self._database.read(base + self._run, dict.fromkeys(columns, int), needed=needed)

    def _timed(self, base: str, *columns: str) -> pl.DataFrame:
        """The rows with times that can be true, and the correlation number of their events."""
        rows = self._read(base, *_TIMED, *columns, needed=_TIMED[:3])
        starts = rows["start"].drop_nulls().sort()
        middle = int(starts[len(starts) // 2]) if len(starts) else 0
        low, high = max(min(middle, _LATEST_NS) - _DAY_NS, 0), max(min(middle + _DAY_NS, _LATEST_NS), 0)
        sound = pl.col("start").is_between(low, high) & pl.col("end").is_between(pl.col("start"), high)
        kept = rows.filter(sound & pl.col("pid").is_not_null())
        self._lost += len(rows) - len(kept)
        return kept.join(self._events, on="event_id", how="left", maintain_order="left").with_columns(
            pl.col("start").alias("ts_ns"), (pl.col("end") - pl.col("start")).alias("duration_ns")
        )

    def _named(self, numbers: pl.Series, base: str, key: str, value: str) -> pl.Series:
        wanted = numbers.drop_nulls().unique()
        texts = self._database.texts(base + self._run, key, value, wanted.to_list())
        names = pl.Series([texts.get(number) or f"unnamed {number}" for number in wanted.to_list()], dtype=pl.String)
        return numbers.replace_strict(wanted, names, default=None, return_dtype=pl.String).fill_null("unnamed")

    def _device(self, column: str) -> pl.Expr:
        return pl.col(column).replace_strict(
            self._gpus["id"], self._gpus["type_index"], default=None, return_dtype=pl.Int64
        )

    def _kernels(self) -> pl.DataFrame:
        rows = self._timed(_KERNELS, "agent_id", "kernel_id", "stream_id", "queue_id", "group_segment_size", *_SIZES)
        # The grid counts work items; everywhere else it counts groups of them.
        groups = [
            pl.when(pl.col(f"workgroup_size_{axis}") > 0)
            .then(-(-pl.col(f"grid_size_{axis}") // pl.col(f"workgroup_size_{axis}")))
            .otherwise(f"grid_size_{axis}")
            for axis in "xyz"
        ]
        return rows.select(
            "pid", "tid", "ts_ns", "duration_ns", "correlation",
            self._named(rows["kernel_id"], _SYMBOLS, "id", "display_name").alias("name"),
            pl.lit("kernel").alias("kind"),
            self._device("agent_id").alias("device"),
            pl.coalesce("stream_id", "queue_id").alias("stream"),
            pl.lit(None, pl.Int64).alias("bytes"),
            pl.format("[{}, {}, {}]", *groups).alias("grid"),
            pl.format("[{}, {}, {}]", *(f"workgroup_size_{axis}" for axis in "xyz")).alias("block"),
            pl.when(pl.col("group_segment_size") >= 0).then("group_segment_size").alias("shared_memory_bytes"),
        )  # fmt: skip

    def _copies(self) -> pl.DataFrame:
        rows = self._timed(_COPIES, "name_id", "dst_agent_id", "src_agent_id", "size", "stream_id", "queue_id")
        name = self._named(rows["name_id"], _TEXTS, "id", "string").str.strip_prefix("MEMORY_COPY_")
        short = name.str.replace_all("HOST", "H").str.replace_all("DEVICE", "D").str.replace("_TO_", "to")
        return rows.select(
            "pid", "tid", "ts_ns", "duration_ns", "correlation",
            ("Memcpy " + short).alias("name"),
            pl.lit("memcpy").alias("kind"),
            pl.coalesce(self._device("dst_agent_id"), self._device("src_agent_id")).alias("device"),
            pl.coalesce("stream_id", "queue_id").alias("stream"),
            pl.when(pl.col("size") >= 0).then("size").alias("bytes"),
            pl.lit(None, pl.String).alias("grid"),
            pl.lit(None, pl.String).alias("block"),
            pl.lit(None, pl.Int64).alias("shared_memory_bytes"),
        )  # fmt: skip

    def _regions(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Calls, and ranges of roctx with the texts that they were given."""
        rows = self._timed(_REGIONS, "name_id").filter(pl.col("tid").is_not_null())
        category = self._named(rows["category_id"], _TEXTS, "id", "string")
        rows = rows.with_columns(
            category.alias("category"), self._named(rows["name_id"], _TEXTS, "id", "string").alias("name")
        )
        marks = rows.filter(pl.col("category").str.contains("MARKER"))
        given = self._database.texts(_EVENTS + self._run, "id", "extdata", marks["event_id"].drop_nulls().to_list())
        names = [_message(given.get(event, "")) or name for event, name in marks.select("event_id", "name").iter_rows()]
        columns = ["pid", "tid", "ts_ns", "duration_ns", "correlation", "name"]
        calls = rows.filter(pl.col("category").str.contains("HIP|HSA")).select(columns)
        others = rows.filter(~pl.col("category").str.contains("HIP|HSA|MARKER")).select(columns)
        marks = marks.with_columns(pl.Series("name", names, pl.String)).select(columns)
        return calls, pl.concat([marks, others])


def _message(text: str) -> str:
    try:
        return parse_json(text, type=_Message).message
    except NotJsonError:
        return ""
