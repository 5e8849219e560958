"""Messages that are carried out together (torch's ``batch_isend_irecv``).

An operator of its own, with a record and without a launch, posts each. At the end of the batch NCCL launches one kernel
for all, outside of any operator, and torch writes no record for it, or one that says no more than that it is coalesced:
it carries the messages that its thread posted since the launch before it. (ProcessGroupNCCL: ``pointToPoint`` between
``startCoalescing`` and ``endCoalescing``.)
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import polars as pl

from whystall.trace.columns import matching

MESSAGES: Final = ("send", "recv")
COALESCED: Final = "coalesced"
"""Name of a record of several operations that were launched as one."""
EXCHANGE: Final = re.compile(r"^nccl.*send_?recv", re.IGNORECASE)
"""Names of kernels that carry messages."""


def batched_messages(records: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """A record for each kernel that has none and carries out messages which are known: with all of their peers.

    ``records`` are those that there are, and ``tables`` the linked tables of a trace.
    """
    events = tables["device_events"]
    exchange = pl.Series("exchange", matching(events["name"], EXCHANGE.search), pl.Boolean)
    posted = records.filter((pl.col("source") == "operator") & pl.col("collective").is_in(MESSAGES))
    if posted.is_empty() or not exchange.any():
        return records.clear()
    launches = _launches(events.with_columns(exchange), tables["runtime_calls"], records)
    messages = _messages(posted, tables["operators"], events)
    parts = []
    for thread, own in messages.items():
        if (calls := launches.get(thread)) is not None:
            place = np.searchsorted(calls["ts_ns"].to_numpy(), own["ts_ns"].to_numpy())
            there = place < len(calls)
            parts.append(own.filter(pl.Series(there)).hstack(calls.select("kernel", "exchange")[place[there]]))
    told = pl.concat(parts).filter("exchange") if parts else posted.clear()
    if told.is_empty():
        return records.clear()
    batches = told.partition_by("kernel", maintain_order=True)
    found = [_record(batch) for batch in batches if not batch["peers"].null_count()]
    rows = [[one[column] for column in records.columns] for one in found]
    return pl.DataFrame(rows, schema=records.schema, orient="row")


def _launches(events: pl.DataFrame, calls: pl.DataFrame, records: pl.DataFrame) -> dict[Any, pl.DataFrame]:
    """The launches by thread, in order, each with its kernel and whether that kernel carries messages without a record.

    A graph's launch carries none: its messages were posted when the graph was captured.
    """
    recorded = records.filter(pl.col("collective") != COALESCED).select("source", "row").unique()
    of_kernel = recorded.filter(pl.col("source") == "device").select(kernel="row", of_kernel=pl.lit(value=True))
    of_caller = recorded.filter(pl.col("source") == "operator").select(operator="row", of_caller=pl.lit(value=True))
    launched = (
        events.select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("kernel"), _row("launch"), _row("operator"), "exchange"
        )
        .filter(pl.col("launch").is_not_null())
        .join(calls.select(pl.int_range(pl.len(), dtype=pl.Int32).alias("launch"), "ts_ns", "thread"), on="launch")
        .join(of_kernel, on="kernel", how="left")
        .join(of_caller, on="operator", how="left")
        .with_columns(
            exchange=pl.col("exchange")
            & pl.col("of_kernel").is_null()
            & pl.col("of_caller").is_null()
            & (pl.len().over("launch") == 1)
        )
    )
    return _by_thread(launched.sort("ts_ns", "kernel"))


def _messages(posted: pl.DataFrame, operators: pl.DataFrame, events: pl.DataFrame) -> dict[Any, pl.DataFrame]:
    """The messages by thread, in order, without those whose operators launched their events."""
    at = operators.select(pl.int_range(pl.len(), dtype=pl.Int32).alias("row"), "ts_ns", "thread")
    launching = events.select(_row("operator").alias("row")).drop_nulls().unique()
    return _by_thread(posted.join(launching, on="row", how="anti").join(at, on="row").sort("ts_ns", "row"))


def _row(link: str) -> pl.Expr:
    return pl.col(link).cast(pl.Int32)


def _by_thread(table: pl.DataFrame) -> dict[Any, pl.DataFrame]:
    parts = table.partition_by("thread", as_dict=True) if len(table) else {}
    return {thread: own for (thread,), own in parts.items()}


def _record(batch: pl.DataFrame) -> dict[str, Any]:
    """The record of messages together. Where some are sent and some received, its size is that of the larger way."""
    sent, received = (batch.filter(pl.col("collective") == kind)["in_elements"] for kind in MESSAGES)
    elements = max(sent.sum(), received.sum()) if not batch["in_elements"].null_count() else None
    kinds = batch["collective"].unique().to_list()
    only = {column: values[0] if len(values := batch[column].unique()) == 1 else None for column in _SHARED}
    return only | {
        "source": "device",
        "row": batch["kernel"][0],
        "collective": kinds[0] if len(kinds) == 1 else "send_recv",
        "in_elements": elements,
        "out_elements": elements,
        "sequence_number": None,
        "peers": str(sorted({int(text[1:-1]) for text in batch["peers"]})),
    }


_SHARED: Final = ("dtype", "group", "group_size", "group_ranks")
