"""Communication records: the arguments that NCCL, RCCL and Gloo leave on events."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from whystall.json_text import NotJsonError, parse_json
from whystall.trace.batched_messages import COALESCED, EXCHANGE, MESSAGES, batched_messages
from whystall.trace.columns import matching
from whystall.trace.metadata import ProcessGroup

HOST_LIBRARY: Final = re.compile(r"^(gloo|mpi|ucc|xccl|nccl):")
"""Names that torch gives to events in which a library carries out a collective on the host."""
ENQUEUES: Final = "c10d::"
"""Prefix of torch's operators that hand a collective to a library's thread."""
_COLUMNS: Final = (
    "collective",
    "dtype",
    "in_elements",
    "out_elements",
    "group",
    "group_size",
    "group_ranks",
    "sequence_number",
    "peer",
)
_SOURCES: Final = {"device_events": "device", "operators": "operator", "annotations": "annotation"}
_INTEGERS: Final = ("in_elements", "out_elements", "group_size", "sequence_number", "peer")
# More does not exist: the count is damaged.
_MOST_ELEMENTS: Final = 1 << 40
_OF_TENSORS: Final = ("input_dims", "input_types")
_BOTH_WAYS: Final = "send_recv"
_KINDS_OF_MESSAGES: Final = (*MESSAGES, _BOTH_WAYS)
_PAIR: Final = 2


def collective_table(tables: dict[str, pl.DataFrame], groups: Sequence[ProcessGroup] = ()) -> pl.DataFrame:
    """All events that carry a collective's name; takes those columns out of their tables, in place.

    A collective on the host without a record gets its fields from its name, its tensors and, if the job has only one
    group, from that group. ``peers`` of a message are the other ranks, where known: `between_peers` adds the rank
    itself.
    """
    tables["annotations"] = _of_libraries(tables["annotations"], groups)
    found = []
    for name, source in _SOURCES.items():
        table = tables[name]
        found.append(
            table.with_row_index("row")
            .filter(pl.col("collective").is_not_null())
            .select(
                pl.lit(source).alias("source"),
                pl.col("row").cast(pl.Int32),
                *(pl.col(column).cast(pl.Int64 if column in _INTEGERS else pl.String) for column in _COLUMNS),
            )
        )
        tables[name] = table.drop(_COLUMNS)
    told = pl.col("collective").is_in(MESSAGES) & (pl.col("peer") >= 0)
    records = pl.concat(found).with_columns(peers=pl.when(told).then(pl.format("[{}]", "peer"))).drop("peer")
    batches = batched_messages(records, tables)
    return pl.concat([_without_blank(records, batches, tables["device_events"]), batches])


def _without_blank(records: pl.DataFrame, batches: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """The records, without those of coalesced messages where more is known; else these are messages to unknown peers.

    Their group is all ranks of a pipeline, of which each exchanges messages with its neighbours alone.
    """
    blank = (pl.col("source") == "device") & (pl.col("collective") == COALESCED)
    if records.filter(blank).is_empty():
        return records
    messages = np.flatnonzero(matching(events["name"], EXCHANGE.search)).tolist()
    kept = records.filter(~(blank & pl.col("row").is_in(batches["row"].to_list())))
    unknown = blank & pl.col("row").is_in(messages)
    return kept.with_columns(collective=pl.when(unknown).then(pl.lit(_BOTH_WAYS)).otherwise("collective"))


def between_peers(table: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """The records of a rank, those of messages with the ranks that they are between, however many their group has.

    If a group has more than two ranks, the ranks of a message to an unknown peer are not known.
    """
    if rank is None:
        return table
    peers = {text: parse_json(text, type=list[int]) for text in table["peers"].unique().drop_nulls().to_list()}
    members = {text: sorted({rank, *own}) for text, own in peers.items() if rank not in own}
    between = pl.DataFrame(
        [(text, str(own), len(own)) for text, own in members.items()],
        schema={"peers": pl.String, "of_message": pl.String, "in_message": pl.Int64},
        orient="row",
    )
    lost = (
        pl.col("collective").is_in(_KINDS_OF_MESSAGES) & pl.col("of_message").is_null() & (pl.col("group_size") > _PAIR)
    )
    return (
        table.join(between, on="peers", how="left", maintain_order="left")
        .with_columns(
            group_ranks=pl.when(lost).then(pl.lit(f"[{rank}]")).otherwise(pl.coalesce("of_message", "group_ranks")),
            group_size=pl.coalesce("in_message", "group_size"),
        )
        .drop("of_message", "in_message")
    )


def _of_libraries(annotations: pl.DataFrame, groups: Sequence[ProcessGroup]) -> pl.DataFrame:
    """The annotations with records for the collectives of libraries that left none, without columns of tensors."""
    bare = annotations.drop(_OF_TENSORS)
    chosen = pl.Series(matching(annotations["name"], HOST_LIBRARY.match)) & annotations["collective"].is_null()
    if not chosen.any():
        return bare
    rows = annotations.with_row_index("row").filter(chosen)
    only = groups[0] if len(groups) == 1 else None
    tensors = [_tensors(*pair) for pair in rows.select(*(pl.col(one).cast(pl.String) for one in _OF_TENSORS)).rows()]
    record = pl.DataFrame(
        [
            (HOST_LIBRARY.sub("", name), dtype, count, _of_all(count, only), *_told(only), None, None)
            for name, (count, dtype) in zip(rows["name"].cast(pl.String), tensors, strict=True)
        ],
        schema={column: pl.Int64 if column in _INTEGERS else pl.String for column in _COLUMNS},
        orient="row",
    ).with_columns(rows["row"])
    joined = bare.with_row_index("row").join(record, on="row", how="left", suffix="_told", maintain_order="left")
    return joined.select(
        pl.coalesce(pl.col(column).cast(record.schema[column]), f"{column}_told").alias(column)
        if column in _COLUMNS
        else column
        for column in bare.columns
    )


def _of_all(count: int | None, group: ProcessGroup | None) -> int | None:
    """Elements of all ranks' inputs together."""
    return None if count is None or group is None or group.size is None else count * group.size


def _told(group: ProcessGroup | None) -> tuple[str | None, int | None, str | None]:
    if group is None:
        return None, None, None
    return group.name, group.size, str(list(group.ranks)) if group.ranks else None


def _tensors(dims: str | None, types: str | None) -> tuple[int | None, str | None]:
    """The number of elements of a call's tensors together, and their dtype if they share one."""
    if not dims or not types:
        return None, None
    try:
        shapes = parse_json(dims.encode(), type=list[list[int]])
        kinds = set(parse_json(types.encode(), type=list[str]))
    except NotJsonError:
        return None, None
    if not shapes or len(kinds) != 1 or any(size < 0 for shape in shapes for size in shape):
        return None, None
    count = sum(math.prod(shape) for shape in shapes)
    return (count, kinds.pop()) if count <= _MOST_ELEMENTS else (None, None)
