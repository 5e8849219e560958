"""Communication by collective, group and dtype: counts, sizes, and how much of it compute hides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis import intervals
from whystall.analysis.device import DeviceAccount
from whystall.analysis.intervals import Cumulative
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.analysis.latency import line
from whystall.analysis.meetings import Attendance
from whystall.analysis.results import Collective
from whystall.json_text import NotJsonError, parse_json
from whystall.trace.collectives import HOST_LIBRARY, between_peers
from whystall.trace.columns import codes, distinct
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.collectives import Bandwidth, LinkShare, bandwidth, kind_named, link_share

Times = NDArray[np.int64]

# Bytes per element of the dtypes as c10d prints them (c10::toString of the scalar type).
_ELEMENT_BYTES: Final[dict[str, int]] = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "short": 2,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "float": 4,
    "long": 8,
    "double": 8,
    "complexfloat": 8,
    "complexdouble": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bytes": 1,  # recordings that count bytes without a type
}
# A larger message does not exist: the count is damaged.
_MOST_ELEMENTS: Final = 1 << 50
# Only the root of these knows all ranks' inputs or results.
_OF_ONE_RANK: Final = frozenset({"gather", "scatter", "coalesced"})
_IN_ONE_MACHINE: Final = 8
_FEWEST_SIZES: Final = 3
_SPREAD: Final = 4
_BY_OUTPUT: Final = frozenset({"all_gather"})  # of a gather only the root knows its output
# The collective in a kernel's name, for traces without communication records.
_IN_KERNEL_NAME: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"reduce_?scatter", "reduce_scatter"),
        (r"all_?reduce|cross_device_reduce|one_?shot_reduce|two_?shot_reduce", "all_reduce"),
        (r"all_?gather", "all_gather"),
        (r"all_?to_?all", "all_to_all"),
        (r"broadcast", "broadcast"),
        (r"send_?recv", "send_recv"),
        (r"notify", "notify"),
        (r"combine", "combine"),
        (r"get_dispatch_layout", "dispatch_layout"),
        (r"dispatch", "dispatch"),
        (r"barrier", "barrier"),
        (r"reduce", "reduce"),
    )
)
_RECORD_COLUMNS: Final = (
    "collective",
    "dtype",
    "in_elements",
    "out_elements",
    "group",
    "group_size",
    "group_ranks",
    "sequence_number",
)
_KEY: Final = ("collective", "group", "group_size", "group_ranks", "dtype")


@dataclass(frozen=True, slots=True)
class Collectives:
    """One rank's recorded collectives, one row each.

    ``table`` has the columns of `communication_records` and ``device``, ``start``, ``end`` (ns, on the rank's clock)
    and ``overlap``, the part of the time that compute ran.
    """

    rank: int
    table: pl.DataFrame
    on_host: bool = False

    @property
    def attendance(self) -> Attendance:
        """The same to be matched with other ranks'."""
        start, end = self.table["start"].to_numpy(), self.table["end"].to_numpy()
        return Attendance(self.rank, self.table, start, end, self.on_host)


def attendance_of(trace: Trace, rank: int, class_of: NDArray[np.uint8]) -> Attendance:
    """A rank's collectives, to match with other ranks'; ``class_of`` is the class of each device event."""
    if trace.device_events.is_empty():
        return Collectives(rank, _on_host(trace, None), on_host=True).attendance
    row = np.flatnonzero(class_of == COMMUNICATION)
    start = trace.device_events["ts_ns"].to_numpy()[row]
    end = start + trace.device_events["duration_ns"].to_numpy()[row]
    return Attendance(rank, communication_records(trace, row), start, end)


def collectives_of(
    trace: Trace, accounts: Mapping[int, DeviceAccount], rank: int, host_compute: Cumulative | None = None
) -> Collectives:
    """The collectives of a rank's devices; of a job without any, those that ran on the host.

    ``host_compute`` is when the CPU of such a job computed.
    """
    if not accounts:
        return Collectives(rank, _on_host(trace, host_compute), on_host=True)
    parts = []
    for device, account in accounts.items():
        events = account.events
        chosen = np.flatnonzero(events.class_of == COMMUNICATION)
        start, end = events.start[chosen], events.end[chosen]
        hidden = account.timeline.cumulative(intervals.COMPUTE_RUNS).within(start, end)
        parts.append(_timed(communication_records(trace, events.row[chosen]), device, start, end, hidden))
    return Collectives(rank, pl.concat(parts))


def _on_host(trace: Trace, compute: Cumulative | None) -> pl.DataFrame:
    """Collectives that a library carried out on the host; without such events, the records of their callers."""
    begin = pl.concat([trace.operators["ts_ns"], trace.annotations["ts_ns"]]).to_numpy()
    duration = pl.concat([trace.operators["duration_ns"], trace.annotations["duration_ns"]]).to_numpy()
    records = host_collectives(trace)
    if records.is_empty():
        records = _with_bytes(_host_records(trace))
    event = records["event"].to_numpy()
    start, end = begin[event], begin[event] + duration[event]
    hidden = np.zeros(len(start), np.int64) if compute is None else compute.within(start, end)
    return _timed(records, 0, start, end, hidden)


_TIMES: Final = ("start", "end", "overlap")


def _timed(records: pl.DataFrame, device: int, start: Times, end: Times, overlap: Times) -> pl.DataFrame:
    return records.select(*_RECORD_COLUMNS, "bytes").with_columns(
        device=pl.lit(device, pl.Int64),
        start=pl.Series(start),
        end=pl.Series(end),
        overlap=pl.Series(overlap, dtype=pl.Int64),
    )


_SIZED: Final = ("collective", "dtype", "in_elements", "out_elements")


def host_collectives(trace: Trace) -> pl.DataFrame:
    """The collectives that a library carried out on the host, by start, with the columns of `communication_records`.

    ``event`` is the number of the event among operators and annotations, in this order, as in ``Trace.host_order``.
    """
    names = pl.concat([trace.operators["name"].cast(pl.String), trace.annotations["name"].cast(pl.String)])
    start = pl.concat([trace.operators["ts_ns"], trace.annotations["ts_ns"]])
    events = pl.DataFrame({"event": np.arange(len(names)), "name": names, "start": start}).filter(
        pl.col("name").str.contains(HOST_LIBRARY.pattern)
    )
    joined = events.sort("start", "event").join(_host_records(trace), on="event", how="left", maintain_order="left")
    return _with_bytes(
        joined.with_columns(
            pl.coalesce("collective", pl.col("name").str.replace(HOST_LIBRARY.pattern, "")).alias("collective")
        )
    )


def _host_records(trace: Trace) -> pl.DataFrame:
    """The records on operators and annotations, which are numbered one after the other (``event``)."""
    records = between_peers(trace.collectives, trace.metadata.rank)
    parts = [
        records.filter(pl.col("source") == source).select(
            (pl.col("row").cast(pl.Int64) + offset).alias("event"), *_RECORD_COLUMNS
        )
        for source, offset in (("operator", 0), ("annotation", len(trace.operators)))
    ]
    return pl.concat(parts).unique("event", keep="first", maintain_order=True)


def communication_records(trace: Trace, rows: np.ndarray) -> pl.DataFrame:
    """The communication record of each device event: its own, its operator's, or one from its name.

    Columns ``collective``, ``dtype``, ``in_elements``, ``out_elements``, ``group``, ``group_size``, ``group_ranks``,
    ``sequence_number`` and ``bytes`` (of the larger side), null where not known.
    """
    told = between_peers(trace.collectives, trace.metadata.rank)
    own = told.filter(pl.col("source") == "device").select(pl.col("row").alias("event"), *_RECORD_COLUMNS)
    by_operator = (
        told.filter(pl.col("source") == "operator")
        .select(pl.col("row").alias("operator"), *_RECORD_COLUMNS)
        .unique("operator", keep="first", maintain_order=True)
    )
    events = pl.DataFrame(
        {
            "event": rows.astype(np.int32),
            "operator": rows_of(trace.device_events["operator"])[rows],
            "from_name": _collective_in_name(trace.device_events["name"], rows),
        },
        schema_overrides={"from_name": pl.String},
    )
    joined = events.join(own, on="event", how="left", maintain_order="left").join(
        by_operator, on="operator", how="left", suffix="_operator", maintain_order="left"
    )
    columns = [pl.coalesce(column, f"{column}_operator").alias(column) for column in _RECORD_COLUMNS]
    return _with_bytes(
        joined.select(*columns, "from_name").with_columns(
            pl.coalesce("collective", "from_name", pl.lit("unknown")).alias("collective")
        )
    )


def _with_bytes(records: pl.DataFrame) -> pl.DataFrame:
    sizes = [_bytes(*row) for row in records.select(_SIZED).iter_rows()]
    return records.with_columns(bytes=pl.Series(sizes, dtype=pl.Int64))


def _collective_in_name(names: pl.Series, rows: np.ndarray) -> list[str | None]:
    texts, code = distinct(names), codes(names)[rows].tolist()
    found = {
        each: next((name for pattern, name in _IN_KERNEL_NAME if pattern.search(texts[each])), None)
        for each in set(code)
    }
    return [found[each] for each in code]


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one element of a dtype as communication records name it; ``None`` for an unknown one."""
    return _ELEMENT_BYTES.get(dtype.lower()) if dtype is not None else None


def _bytes(collective: str | None, dtype: str | None, in_elements: int | None, out_elements: int | None) -> int | None:
    size = element_bytes(dtype)
    kind = kind_named(collective) if collective else None
    elements = out_elements if kind in _BY_OUTPUT else in_elements
    if size is None or elements is None or not 0 <= elements <= _MOST_ELEMENTS:
        return None
    return size * elements


def communication_results(
    collectives: Collectives, links: Mapping[int, float | None] | None = None, waits: pl.DataFrame | None = None
) -> list[Collective]:
    """One row per collective, group and dtype on a device, the longest first.

    ``links`` are the peaks of devices' links in bytes per second and direction. ``waits`` is the result of
    `whystall.analysis.waiting.waiting` for the same collectives: bandwidth is then that of the transfer alone.
    """
    table = collectives.table.with_columns(duration=pl.col("end") - pl.col("start"))
    if waits is None:
        unknown = pl.lit(None, pl.Int64)
        table = table.with_columns(wait_ns=unknown, transfer_ns=unknown)
    else:
        table = table.with_columns(waits["wait_ns"], waits["transfer_ns"])
    lines = _lines(table)
    small = _small_shares(table, lines)
    grouped = table.group_by("device", *_KEY, maintain_order=True).agg(
        pl.len().alias("count"),
        pl.col("bytes").sum().alias("bytes"),
        pl.col("bytes").null_count().alias("unsized"),
        pl.col("duration").sum().alias("total_ns"),
        pl.col("duration").min().alias("min_ns"),
        pl.col("duration").max().alias("max_ns"),
        pl.col("overlap").sum().alias("overlap_ns"),
        pl.col("wait_ns").sum(),
        pl.col("wait_ns").null_count().alias("unmet"),
        pl.col("transfer_ns").sum(),
    )
    rows = []
    for row in grouped.iter_rows(named=True):
        key = tuple(row[column] for column in ("device", *_KEY))
        rows.append(_row(collectives.rank, row, (links or {}).get(row["device"]), lines.get(key), small.get(key)))
    return sorted(rows, key=lambda row: (row.device, -row.total_ns, row.collective, row.group or "", row.dtype or ""))


def _lines(table: pl.DataFrame) -> dict[tuple[Any, ...], tuple[float, float]]:
    """By group of rows latency and time per byte (ns), from the median time of each size."""
    whole = table.filter(pl.col("bytes") > 0, pl.col("transfer_ns") > 0)
    medians = whole.group_by("device", *_KEY, "bytes").agg(pl.col("transfer_ns").median()).sort("bytes")
    found = {}
    for key, sizes in medians.partition_by("device", *_KEY, as_dict=True).items():
        smallest, largest = sizes["bytes"][0], sizes["bytes"][-1]
        if len(sizes) >= _FEWEST_SIZES and largest >= _SPREAD * smallest:
            latency, per_byte = line(sizes["bytes"].to_list(), sizes["transfer_ns"].to_list())
            if per_byte > 0:
                found[key] = latency, per_byte
    return found


def _small_shares(
    table: pl.DataFrame, lines: Mapping[tuple[Any, ...], tuple[float, float]]
) -> dict[tuple[Any, ...], float]:
    """By group of rows the share of messages that take longer for their latency than for their bytes."""
    sized = table.filter(pl.col("bytes") > 0).partition_by("device", *_KEY, as_dict=True)
    return {
        key: float((sized[key]["bytes"] * per_byte < latency).mean())  # type: ignore[arg-type]
        for key, (latency, per_byte) in lines.items()
    }


def _row(
    rank: int, row: dict[str, Any], link: float | None, fitted: tuple[float, float] | None, small: float | None
) -> Collective:
    met = not row["unmet"]
    size = None if row["unsized"] else row["bytes"]
    kind = kind_named(row["collective"])
    found = rates(kind, size, row["transfer_ns"] if met else row["total_ns"], row["group_size"])
    over = _over_link(kind, found, row["group_size"], link)
    return Collective(
        rank=rank,
        device=row["device"],
        collective=row["collective"],
        group=row["group"],
        group_size=row["group_size"],
        ranks=_rank_list(row["group_ranks"]),
        dtype=row["dtype"],
        count=row["count"],
        bytes=size,
        total_ns=row["total_ns"],
        min_ns=row["min_ns"],
        max_ns=row["max_ns"],
        overlap_ns=row["overlap_ns"],
        exposed_ns=row["total_ns"] - row["overlap_ns"],
        wait_ns=row["wait_ns"] if met else None,
        algbw=None if found is None else found.algorithm_bytes_per_s,
        busbw=None if found is None else found.bus_bytes_per_s,
        wirebw=None if over.share is None or link is None else over.share * link,
        share_of_peak=over.share if over.share is not None and over.share <= 1 else None,
        link_note=over.note,
        latency_ns=fitted[0] if fitted is not None else None,
        busbw_beyond_latency=_beyond_latency(kind, row["group_size"], fitted),
        small_share=small,
    )


def _beyond_latency(kind: str | None, ranks: int | None, fitted: tuple[float, float] | None) -> float | None:
    found = rates(kind, 1_000_000_000, fitted[1] * 1e9, ranks) if fitted is not None else None
    return None if found is None else found.bus_bytes_per_s


def rates(kind: str | None, size: int | None, duration_ns: float, ranks: int | None) -> Bandwidth | None:
    """The bandwidth of a recorded size: the whole input or output of a rank, S of the kind (for gathers, a part)."""
    if kind is None or kind in _OF_ONE_RANK or not size or not ranks or ranks < 2 or duration_ns <= 0:
        return None
    return bandwidth(kind, size, duration_ns, ranks)


def _over_link(kind: str | None, rates: Bandwidth | None, ranks: int | None, link: float | None) -> LinkShare:
    """The share of the device's own link; a group larger than one machine does not use it for all its messages."""
    if kind is None or rates is None or link is None or not ranks or ranks > _IN_ONE_MACHINE:
        return LinkShare(None, None)
    return link_share(kind, rates.algorithm_bytes_per_s, ranks, link)


def _rank_list(text: str | None) -> list[int] | None:
    """The ranks of a group from its record, where they are all written out (long lists are cut with dots)."""
    if text is None:
        return None
    try:
        return parse_json(text.encode(), type=list[int])
    except NotJsonError:
        return None
