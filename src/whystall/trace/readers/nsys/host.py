"""Host activity: calls of the runtime and the driver, waits for the device, the profiler's own time."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from whystall.trace.readers.nsys.export import CALLS, OVERHEAD, RECORDED_EVENTS, SYNCHRONIZATIONS, Export, known, named

# CUPTI numbers the versions of a call: cudaLaunchKernel_v7000 is cudaLaunchKernel.
_VERSION: Final = re.compile(r"_v\d{4,}$")
# ENUM_CUPTI_SYNC_TYPE, in the words of Kineto.
_WAITS: Final = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
# ENUM_CUPTI_OVERHEAD_TYPE.
_OVERHEADS: Final = {
    2: "Driver Compiler", 6: "Runtime Triggered Module Loading", 7: "Lazy Function Loading", 8: "Command Buffer Full",
}  # fmt: skip
_NO_EVENT: Final = (1 << 32) - 1
_EVENT: Final = ("contextId", "streamId", "correlationId", "eventId", "eventSyncId")


def read_calls(export: Export) -> pl.DataFrame:
    """The calls of all processes: process, ts_ns, duration_ns, globalTid, name, correlation."""
    rows = export.events_of(CALLS, "globalTid", "correlationId", "nameId")
    names = {number: _VERSION.sub("", text) for number, text in export.names(rows["nameId"]).items()}
    return rows.select(
        "process", "ts_ns", "duration_ns", "globalTid",
        named(rows["nameId"], names).alias("name"),
        pl.col("correlationId").alias("correlation"),
    )  # fmt: skip


def read_synchronizations(export: Export, devices: pl.DataFrame) -> pl.DataFrame:
    """The waits of all processes; a wait for an event names the stream and the call that recorded it.

    ``devices`` are device events: exports of 2026 give device 0 for every wait, and a context knows its device better.
    """
    kind = "syncType" if "syncType" in export.source.columns(SYNCHRONIZATIONS) else "deprecatedSyncType"
    rows = export.events_of(SYNCHRONIZATIONS, "globalPid", kind, "deviceId", *_EVENT)
    contexts = devices.group_by("process", "context").agg(
        pl.col("device").min(), pl.col("device").n_unique().alias("n")
    )
    contexts = contexts.filter(pl.col("n") == 1).select("process", contextId="context", of_context="device")
    rows = rows.join(contexts, on=["process", "contextId"], how="left", maintain_order="left")
    rows = _with_records(rows, _records(export))
    waits = pl.col(kind).is_in((1, 2))
    return rows.select(
        "process", "ts_ns", "duration_ns",
        named(rows[kind], _WAITS).alias("name"),
        pl.coalesce("of_context", known("deviceId")).alias("device"),
        known("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
        pl.when(waits).then("recorded_on").alias("wait_on_stream"),
        pl.when(waits).then("recorded_by").alias("wait_on_correlation"),
        pl.when(waits & (pl.col("eventId") < _NO_EVENT)).then("eventId").alias("event_id"),
    )  # fmt: skip


def _records(export: Export) -> pl.DataFrame:
    """The calls that recorded events; a call matters by its number, not by when the device reached it."""
    rows = export.source.read(RECORDED_EVENTS, dict.fromkeys(("globalPid", *_EVENT), int), needed=("globalPid",))
    return rows.drop_nulls(["globalPid", "correlationId"]).select(
        export.process_of("globalPid"),
        "eventId", "eventSyncId",
        known("streamId").alias("recorded_on"),
        pl.col("correlationId").alias("recorded_by"),
    )  # fmt: skip


def _with_records(waits: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """With each wait the record of its event: by the number that links the two, else the last before the wait."""
    numbered = records.filter(pl.col("eventSyncId") > 0).unique(["process", "eventSyncId"], keep="none")
    linked = waits.with_row_index("row").join(
        numbered.select("process", "eventSyncId", "recorded_on", "recorded_by"),
        on=["process", "eventSyncId"], how="left", maintain_order="left",
    )  # fmt: skip
    # Correlation numbers count up within a process, so that the last record before a wait has the next lower one.
    last = linked.filter(pl.col("correlationId").is_not_null()).sort("correlationId").join_asof(
        records.select("process", "eventId", pl.col("recorded_on", "recorded_by").name.suffix("_last"))
        .sort("recorded_by_last"),
        left_on="correlationId", right_on="recorded_by_last", by=["process", "eventId"], coalesce=False,
        check_sortedness=False,
    ).select("row", "recorded_on_last", "recorded_by_last")  # fmt: skip
    return linked.join(last, on="row", how="left", maintain_order="left").with_columns(
        pl.coalesce("recorded_on", "recorded_on_last").alias("recorded_on"),
        pl.coalesce("recorded_by", "recorded_by_last").alias("recorded_by"),
    )


def read_overhead(export: Export) -> pl.DataFrame:
    """Time of the profiler and the driver themselves: process, ts_ns, duration_ns, globalTid, name, category."""
    rows = export.events_of(OVERHEAD, "globalTid", "overheadType")
    return rows.select(
        "process", "ts_ns", "duration_ns", "globalTid",
        named(rows["overheadType"], _OVERHEADS).alias("name"),
        pl.lit("overhead").alias("category"),
    )  # fmt: skip
