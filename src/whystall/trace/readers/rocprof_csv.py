"""Reads the CSV files of rocprofv3 (``--output-format csv``): one for kernels, copies, calls and ranges each.

Files of one job lie beside each other and begin alike: ``77_kernel_trace.csv``, ``77_hip_api_trace.csv``. A file's
header states its content; releases spell columns in one case or the other. Copies have no sizes in this format.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from whystall.trace.errors import InputError
from whystall.trace.files import Head, Limits, Progress, contents
from whystall.trace.metadata import DeviceProperties, Metadata, sound_text
from whystall.trace.model import Quarantine
from whystall.trace.readers.reader import RawTrace, Whole
from whystall.trace.readers.rocprof import MARKERS, direction, plausible_times

_KINDS: Final = (
    "kernel", "memory_copy", "hip_api", "hip", "hip_runtime_api", "hip_compiler_api", "hsa_api", "hsa", "hsa_core_api",
    "marker_api", "marker", "rccl_api", "rccl",
)  # fmt: skip
"""Kinds that file names state; the first one present stands for all files of a job."""
_FILE: Final = re.compile(rf"(.*_|)(?:{'|'.join(_KINDS)})_trace\.csv")
_AGENTS: Final = "agent_info.csv"
_TIMES: Final = ("correlation_id", "start_timestamp", "end_timestamp")
_KERNEL: Final = ("kernel_name", "agent_id", *_TIMES)
_COPY: Final = ("direction", "source_agent_id", "destination_agent_id", *_TIMES)
_CALL: Final = ("domain", "function", "thread_id", *_TIMES)
_SIZES: Final = tuple(f"{of}_size_{axis}" for of in ("grid", "workgroup") for axis in "xyz")
_NUMBERS: Final = (
    *_TIMES, *_SIZES, "stream_id", "queue_id", "process_id", "thread_id", "lds_block_size", "group_segment_size",
    "logical_node_id", "cu_count",
)  # fmt: skip
_AGENT: Final = ("logical_node_id", "agent_type", "product_name", "cu_count")
_USED: Final = frozenset((*_KERNEL, *_COPY, *_CALL, *_NUMBERS, *_AGENT))
_OF_CALLS: Final = "HIP|HSA"
_FAILURES: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
# A file and its parsed form are in memory at once.
_MOST_BYTES: Final = 8 << 30
_NO_SIZES: Final = "sizes of copies are not in CSV of rocprofv3: its JSON and its database have them"


class RocprofCsvReader:
    """CSV files of AMD's rocprofv3; the one of kernels stands for all."""

    name = "rocprof-csv"
    version = 1
    describes = "CSV of rocprofv3 (*_kernel_trace.csv, with the job's other files beside it)"
    suffixes = ("kernel_trace.csv",)

    def whole_of(self, path: Path) -> Whole | None:
        """The files of a file's job, by their names; ``None`` for a file with another name."""
        named = _FILE.fullmatch(path.name)
        if named is None:
            return None
        beside = [path.with_name(f"{named[1]}{kind}_trace.csv") for kind in _KINDS]
        traces = [file for file in beside if file == path or file.is_file()]
        agents = path.with_name(f"{named[1]}{_AGENTS}")
        name = f"{named[1]}*_trace.csv" if len(traces) > 1 else path.name
        return Whole(name, (*traces, agents) if agents.is_file() else tuple(traces))

    def knows(self, head: Head) -> bool:
        """Whether the first line names the columns of one of the files."""
        columns = _columns(head.content.partition(b"\n")[0])
        return any(set(needed) <= columns for needed in (_KERNEL, _COPY, _CALL))

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recording in the files of a job. Raises `InputError` where there is none."""
        whole = self.whole_of(path) or Whole(path.name, (path,))
        job = _Job(limits, progress)
        gpus: dict[int, DeviceProperties] = {}
        for file in whole.files:
            if file.name.endswith(_AGENTS):
                gpus = _gpus(job.table(file))
            else:
                job.add(file)
        found = job.recording(gpus)
        if not found.events:
            raise InputError(f"{whole.name} holds no event of a job{f': {job.warnings[0]}' if job.warnings else ''}")
        return [found]


class _Job:
    """The rows of a job's files, by kind."""

    def __init__(self, limits: Limits, progress: Progress | None) -> None:
        self.warnings: list[str] = []
        self._limits = limits
        self._progress = progress
        self._raw_bytes = 0
        self._truncated = False
        self._parts: dict[tuple[str, ...], list[pl.DataFrame]] = {kind: [] for kind in (_KERNEL, _COPY, _CALL)}

    def add(self, path: Path) -> None:
        """Reads a file; a file of no known kind is named in the warnings."""
        table = self.table(path)
        kind = next((kind for kind in self._parts if set(kind) <= set(table.columns)), None)
        if kind is not None:
            self._parts[kind].append(table)
        elif table.columns:
            self.warnings.append(f"{path.name} lacks columns that are needed: it was not read")

    def table(self, path: Path) -> pl.DataFrame:
        """The columns of a file that are used, in lower case: numbers as such, null where there is none."""
        text, warnings = contents(path, _MOST_BYTES, self._limits, self._progress)
        self._raw_bytes += len(text)
        for sentence in warnings:
            self._lose(sentence)
        if text and not text.endswith(b"\n"):
            text = text[: text.rfind(b"\n") + 1]
            self._lose(f"{path.name} ends in the middle of a line: what stands before it is kept")
        most = self._limits.events
        try:
            rows = pl.read_csv(
                io.BytesIO(text), infer_schema=False, encoding="utf8-lossy", truncate_ragged_lines=True,
                n_rows=most + 1, raise_if_empty=False,
            )  # fmt: skip
        except _FAILURES:
            self._lose(f"{path.name} is damaged and cannot be read as CSV")
            return pl.DataFrame()
        if len(rows) > most:
            self._lose(f"{path.name} has more rows than are read: the rest was left out")
        named = {name.strip().lower(): name for name in reversed(rows.columns)}  # the first of equal columns
        return rows.head(most).select(
            pl.col(name).str.strip_chars().cast(pl.Int64, strict=False).alias(used)
            if used in _NUMBERS
            else pl.col(name).alias(used)
            for used, name in named.items()
            if used in _USED
        )

    def _lose(self, sentence: str) -> None:
        self._truncated = True
        self.warnings.append(sentence)

    def recording(self, gpus: Mapping[int, DeviceProperties]) -> RawTrace:
        """All that was read, as one process's recording."""
        rows = {kind: pl.concat(parts, how="diagonal") for kind, parts in self._parts.items() if parts}
        events = sum(map(len, rows.values()))
        starts = [table["start_timestamp"] for table in rows.values()]
        low, high = plausible_times(pl.concat(starts).drop_nulls().to_list() if starts else [])
        sound = {kind: _sound(table, low, high) for kind, table in rows.items()}
        lost = events - sum(map(len, sound.values()))
        kernels, copies = sound.get(_KERNEL), sound.get(_COPY)
        parts = [_kernels(kernels, gpus)] if kernels is not None else []
        if copies is not None:
            parts.append(_copies(copies, gpus))
            self.warnings += [_NO_SIZES] if len(copies) else []
        tables = {"device_events": pl.concat(parts, how="diagonal")} if parts else {}
        threads = pl.DataFrame(schema={"pid": pl.String, "tid": pl.String, "name": pl.String})
        if _CALL in sound:
            threads, of_host = _host(sound[_CALL])
            tables |= of_host
        names = tables["device_events"]["name"] if parts else pl.Series(dtype=pl.String)
        pytorch = names.str.contains("at::native::", literal=True).any()
        return RawTrace(
            tables={name: table for name, table in tables.items() if len(table)},
            threads=threads,
            events=events,
            raw_bytes=self._raw_bytes,
            metadata=Metadata(framework="pytorch" if pytorch else None, devices=tuple(gpus.values())),
            warnings=self.warnings,
            truncated=self._truncated,
            quarantined=[Quarantine("times that cannot be true", lost, 0)] if lost else [],
        )


def _columns(line: bytes) -> set[str]:
    return {name.strip().strip('"').lower() for name in line.decode("utf-8", "replace").split(",")}


def _sound(table: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """The rows with times that can be true, as the schema has them."""
    begin, end = pl.col("start_timestamp"), pl.col("end_timestamp")
    kept = table.filter(begin.is_between(low, high) & end.is_between(begin, high))
    return kept.with_columns(begin.alias("ts_ns"), (end - begin).alias("duration_ns"))


def _gpus(agents: pl.DataFrame) -> dict[int, DeviceProperties]:
    """The machine's GPUs by their number among all agents, each with its number among GPUs."""
    if not set(_AGENT) <= set(agents.columns):
        return {}
    found: dict[int, DeviceProperties] = {}
    rows = agents.select(_AGENT).filter(pl.col("agent_type") == "GPU").drop_nulls(_AGENT[0]).sort(_AGENT[0])
    for number, _, name, units in rows.unique(_AGENT[0], keep="first", maintain_order=True).rows():
        found[number] = DeviceProperties(
            id=len(found),
            name=sound_text(name or "")[:1000] or None,
            memory_bytes=None,
            compute_capability=None,
            multiprocessors=units if units is not None and 0 < units < 1 << 20 else None,
        )
    return found


def _device(column: str, gpus: Mapping[int, DeviceProperties]) -> pl.Expr:
    """A device's number: of ``GPU 1`` its own, of ``Agent 7`` or ``7`` that of the machine's GPU, else as it stands."""
    text = pl.col(column).str.strip_chars()
    number = text.str.extract(r"^(?:Agent |GPU )?(\d{1,9})$").cast(pl.Int64)
    among = {agent: gpu.id for agent, gpu in gpus.items()}
    return pl.when(text.str.starts_with("GPU ")).then(number).otherwise(
        number.replace_strict(among, default=number, return_dtype=pl.Int64) if among else number
    )  # fmt: skip


def _with(table: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    return table.with_columns(pl.lit(None, pl.Int64).alias(name) for name in columns if name not in table.columns)


def _kernels(rows: pl.DataFrame, gpus: Mapping[int, DeviceProperties]) -> pl.DataFrame:
    rows = _with(rows, (*_SIZES, "stream_id", "queue_id", "lds_block_size", "group_segment_size"))
    # The grid counts work items; everywhere else it counts groups of them.
    groups = [
        pl.when(pl.col(f"workgroup_size_{axis}") > 0)
        .then(-(-pl.col(f"grid_size_{axis}") // pl.col(f"workgroup_size_{axis}")))
        .otherwise(f"grid_size_{axis}")
        for axis in "xyz"
    ]
    memory = pl.coalesce("lds_block_size", "group_segment_size")
    return rows.select(
        "ts_ns", "duration_ns",
        pl.col("kernel_name").fill_null("unnamed").alias("name"),
        pl.lit("kernel").alias("kind"),
        _device("agent_id", gpus).alias("device"),
        pl.coalesce("stream_id", "queue_id").alias("stream"),
        pl.col("correlation_id").alias("correlation"),
        pl.format("[{}, {}, {}]", *groups).alias("grid"),
        pl.format("[{}, {}, {}]", *(f"workgroup_size_{axis}" for axis in "xyz")).alias("block"),
        pl.when(memory >= 0).then(memory).alias("shared_memory_bytes"),
    )  # fmt: skip


def _copies(rows: pl.DataFrame, gpus: Mapping[int, DeviceProperties]) -> pl.DataFrame:
    rows = _with(rows, ("stream_id",))
    directions = [direction(text or "") for text in rows["direction"].to_list()]
    from_device = pl.Series(
        [short.startswith("D") and not short.endswith("D") for short in directions], dtype=pl.Boolean
    )
    source, target = _device("source_agent_id", gpus), _device("destination_agent_id", gpus)
    return rows.with_columns(from_device.alias("from_device")).select(
        "ts_ns", "duration_ns",
        pl.Series("name", [f"Memcpy {short}" for short in directions], pl.String),
        pl.lit("memcpy").alias("kind"),
        pl.when("from_device").then(source).otherwise(target).alias("device"),
        pl.col("stream_id").alias("stream"),
        pl.col("correlation_id").alias("correlation"),
    )  # fmt: skip


def _host(rows: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """The threads, and their events by table: calls of HIP and HSA, ranges of roctx, and other libraries' events."""
    keys = ["process_id", "thread_id"]
    rows = _with(rows, ("process_id",)).filter(pl.col("thread_id").is_not_null())
    threads = rows.select(keys).unique().sort(keys).with_row_index("thread")
    rows = rows.join(threads, on=keys, how="left", nulls_equal=True, maintain_order="left").with_columns(
        pl.col("thread").cast(pl.Int32),
        pl.col("function").fill_null("unnamed").alias("name"),
        pl.col("domain").fill_null(""),
    )
    columns = ["ts_ns", "duration_ns", "name", "thread"]
    call, marker = pl.col("domain").str.contains(_OF_CALLS), pl.col("domain").str.contains("MARKER")
    mark = pl.col("domain").str.contains(MARKERS) & (pl.col("duration_ns") == 0)
    told = rows.filter(~call & (~marker | pl.col("domain").str.contains(MARKERS)) & ~mark)
    return threads.select(
        pl.col("process_id").cast(pl.String).alias("pid"),
        pl.col("thread_id").cast(pl.String).alias("tid"),
        pl.lit(None, pl.String).alias("name"),
    ), {
        "runtime_calls": rows.filter(call).select(*columns, pl.col("correlation_id").alias("correlation")),
        "annotations": told.select(columns),
        "other_events": rows.filter(mark).select(*columns, pl.lit("roctx").alias("category")),
    }
