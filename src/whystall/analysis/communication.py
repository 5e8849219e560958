"""Communication by collective, group and dtype: counts, sizes, and how much of it compute hides."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
import polars as pl

from whystall.analysis import intervals
from whystall.analysis.device import DeviceAccount
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.analysis.results import Collective
from whystall.trace.columns import codes, distinct
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.collectives import kind_named

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
}
# A larger message does not exist: the count is damaged.
_MOST_ELEMENTS: Final = 1 << 50
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


def communication_results(trace: Trace, account: DeviceAccount, rank: int, device: int) -> list[Collective]:
    """One row per collective, group and dtype on a device, the longest first."""
    events = account.events
    chosen = np.flatnonzero(events.class_of == COMMUNICATION)
    if not len(chosen):
        return []
    start, end = events.start[chosen], events.end[chosen]
    hidden = account.timeline.cumulative(intervals.COMPUTE_RUNS).within(start, end)
    table = communication_records(trace, events.row[chosen]).with_columns(
        duration=pl.Series(end - start), overlap=pl.Series(hidden)
    )
    return _grouped(table, rank, device)


_SIZED: Final = ("collective", "dtype", "in_elements", "out_elements")


def host_communication_results(trace: Trace, rank: int) -> list[Collective]:
    """The same for a job without an accelerator, from the records on operators and annotations."""
    parts = []
    for source, events in (("operator", trace.operators), ("annotation", trace.annotations)):
        records = trace.collectives.filter(pl.col("source") == source)
        if records.is_empty():
            continue
        duration = events["duration_ns"].to_numpy()[records["row"].to_numpy()]
        parts.append(
            records.select(_RECORD_COLUMNS).with_columns(duration=pl.Series(duration), overlap=pl.lit(0, pl.Int64))
        )
    if not parts:
        return []
    return _grouped(_with_bytes(pl.concat(parts)), rank, 0)


def host_collectives(trace: Trace) -> pl.DataFrame:
    """The collectives that a library carried out on the host, by start, with the columns of `communication_records`.

    ``event`` is the number of the event among operators and annotations, in this order, as in ``Trace.host_order``.
    """
    names = pl.concat([trace.operators["name"].cast(pl.String), trace.annotations["name"].cast(pl.String)])
    start = pl.concat([trace.operators["ts_ns"], trace.annotations["ts_ns"]])
    events = pl.DataFrame({"event": np.arange(len(names)), "name": names, "start": start}).filter(
        pl.col("name").str.contains(_HOST_LIBRARY.pattern)
    )
    records = pl.concat(
        [
            trace.collectives.filter(pl.col("source") == source).select(
                (pl.col("row").cast(pl.Int64) + offset).alias("event"), *_RECORD_COLUMNS
            )
            for source, offset in (("operator", 0), ("annotation", len(trace.operators)))
        ]
    ).unique("event", keep="first", maintain_order=True)
    joined = events.sort("start", "event").join(records, on="event", how="left", maintain_order="left")
    return _with_bytes(
        joined.with_columns(
            pl.coalesce("collective", pl.col("name").str.replace(_HOST_LIBRARY.pattern, "")).alias("collective")
        )
    )


_HOST_LIBRARY: Final = re.compile(r"^(gloo|mpi|ucc|xccl|nccl):")


def communication_records(trace: Trace, rows: np.ndarray) -> pl.DataFrame:
    """The communication record of each device event: its own, its operator's, or what its name says.

    Columns ``collective``, ``dtype``, ``in_elements``, ``out_elements``, ``group``, ``group_size``, ``group_ranks``,
    ``sequence_number`` and ``bytes`` (of the larger side), null where not known.
    """
    own = trace.collectives.filter(pl.col("source") == "device").select(pl.col("row").alias("event"), *_RECORD_COLUMNS)
    by_operator = (
        trace.collectives.filter(pl.col("source") == "operator")
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
    """Bytes of one element of a dtype as communication records name it; ``None`` for one not known."""
    return _ELEMENT_BYTES.get(dtype.lower()) if dtype is not None else None


def _bytes(collective: str | None, dtype: str | None, in_elements: int | None, out_elements: int | None) -> int | None:
    size = element_bytes(dtype)
    kind = kind_named(collective) if collective else None
    elements = out_elements if kind in _BY_OUTPUT else in_elements
    if size is None or elements is None or not 0 <= elements <= _MOST_ELEMENTS:
        return None
    return size * elements


def _grouped(table: pl.DataFrame, rank: int, device: int) -> list[Collective]:
    grouped = table.group_by(_KEY, maintain_order=True).agg(
        pl.len().alias("count"),
        pl.col("bytes").sum().alias("bytes"),
        pl.col("bytes").null_count().alias("unsized"),
        pl.col("duration").sum().alias("total_ns"),
        pl.col("duration").min().alias("min_ns"),
        pl.col("duration").max().alias("max_ns"),
        pl.col("overlap").sum().alias("overlap_ns"),
    )
    rows = [
        Collective(
            rank=rank,
            device=device,
            collective=row["collective"],
            group=row["group"],
            group_size=row["group_size"],
            ranks=_rank_list(row["group_ranks"]),
            dtype=row["dtype"],
            count=row["count"],
            bytes=None if row["unsized"] else row["bytes"],
            total_ns=row["total_ns"],
            min_ns=row["min_ns"],
            max_ns=row["max_ns"],
            overlap_ns=row["overlap_ns"],
            exposed_ns=row["total_ns"] - row["overlap_ns"],
        )
        for row in grouped.iter_rows(named=True)
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.collective, row.group or "", row.dtype or ""))


def _rank_list(text: str | None) -> list[int] | None:
    """The ranks of a group from its record, where they are all written out (long lists are cut with dots)."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=list[int])
    except msgspec.DecodeError:
        return None
