"""Only the collectives of a folder of traces: who comes last, in a fraction of an analysis's time.

The filter passes those parts of a trace that identify a collective. Ranks, their numbers, windows and copies are
recognised as for an analysis of all events, and waiting is separated from transfer: ranks' clocks are set by the ends
of the collectives that they share, and a rank waits until the last one has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from whystall.analysis.communication import attendance_of, rates
from whystall.analysis.kernel_classes import CLASSES, COMMUNICATION, classify, shipped_class
from whystall.analysis.meetings import Attendance, meetings
from whystall.analysis.rank_clocks import rank_clocks
from whystall.analysis.waiting import WANTED, waiting
from whystall.errors import InputError
from whystall.fleet.logs.lateness import stands_out
from whystall.fleet.logs.results import CommLog, CommRow, RankWait
from whystall.fleet.spans import without_recording
from whystall.trace.discovery import RANKS_JSON
from whystall.trace.files import head_of
from whystall.trace.readers.kineto.sieve import CollectivesReader
from whystall.trace.recordings import Recordings, read_recordings
from whystall.vocabulary.collectives import kind_named

__all__ = ["READER", "from_traces", "is_trace"]

_GROUP: Final = ["group", "group_ranks"]
_OF_WAITING: Final = ("wait_ns", "transfer_ns")
_ON_HOST: Final = (
    "a library on the host (gloo, MPI) carried the collectives out, at times other than the ranks' arrivals: the rank "
    "that others waited for is unknown, and times are the shortest of the ranks, waiting included"
)


def _communicates(kernel: str) -> bool:
    found = shipped_class(kernel)
    return found is not None and found.class_ == CLASSES[COMMUNICATION]


READER: Final = CollectivesReader(_communicates)


def is_trace(path: Path) -> bool:
    """Whether a file is a trace of the PyTorch profiler."""
    try:
        return READER.knows(head_of(path))
    except InputError:
        return False


def from_traces(paths: Sequence[Path]) -> CommLog:
    """Bandwidths without waiting, and each rank's waits. Raises ``InputError`` where no trace holds a collective.

    A list of ranks (`ranks.json`) beside the traces applies.
    """
    given = list(dict.fromkeys(paths))
    lists = [one for one in dict.fromkeys(path.with_name(RANKS_JSON) for path in given) if one.is_file()]
    read = read_recordings([*given, *lists], cache=False, readers=[READER])
    attendances = [
        attendance_of(trace, rank, classify(trace.device_events).class_of)
        for trace, rank in zip(read.traces, read.ranks, strict=True)
    ]
    if not any(len(one.start) for one in attendances):
        raise InputError("; ".join(["the traces hold no collective", *read.failures]))
    on_host = any(one.on_host for one in attendances)
    table = _table(attendances)
    if on_host:
        table = table.with_columns(pl.lit(None, pl.Int64).alias(name) for name in _OF_WAITING)
    return CommLog(
        format="PyTorch traces",
        files=len(given),
        rows=tuple(_rows(table)),
        waits=tuple(_waits(table)),
        communicators=table["communicator"].n_unique(),
        notes=(*read.failures, *read.notes, *_of_ranks(read), *([_ON_HOST] if on_host else _notes(table))),
    )


def _table(attendances: Sequence[Attendance]) -> pl.DataFrame:
    """Every rank's collectives: rank, communicator, kind, bytes, ranks to come, number of the meeting, times in ns.

    ``wait_ns`` and ``transfer_ns`` are null where not all ranks of the group are there, ``ranks`` where their number is
    unknown.
    """
    numbers = meetings(attendances)
    waits = waiting(attendances, numbers, rank_clocks(attendances, numbers))
    sized = pl.col("group_size") > 1
    parts = [
        one.records.select(
            "collective", *_GROUP, "bytes", pl.when(sized | (WANTED > 1)).then(WANTED).alias("ranks")
        ).with_columns(
            *wait.get_columns(),
            rank=pl.lit(one.rank, pl.Int64),
            number=pl.Series(number),
            time_ns=pl.Series(one.end - one.start, dtype=pl.Int64),
        )
        for one, number, wait in zip(attendances, numbers, waits, strict=True)
    ]
    table = pl.concat(parts)
    names = table["collective"].unique().to_list()
    kinds = {name: kind_named(name) for name in names if name is not None}
    groups = table.select(_GROUP).unique(maintain_order=True).with_row_index("communicator")
    return table.with_columns(
        kind=pl.col("collective").replace_strict(kinds, return_dtype=pl.String, default=None)
    ).join(groups, on=_GROUP, how="left", nulls_equal=True, maintain_order="left")


def _rows(table: pl.DataFrame) -> Iterator[CommRow]:
    met = table.group_by("number").agg(
        pl.col("kind").first(),
        pl.col("bytes").max(),
        pl.col("ranks").first(),
        pl.col("transfer_ns").is_not_null().all().alias("whole"),
        pl.coalesce(pl.col("transfer_ns").min(), pl.col("time_ns").min()).alias("time_ns"),
    )
    grouped = met.group_by("kind", "bytes", "ranks", "whole").agg(pl.len().alias("count"), pl.col("time_ns").mean())
    for kind, size, ranks, whole, count, time_ns in grouped.sort("kind", "ranks", "bytes", "whole").rows():
        found = rates(kind, size, time_ns, ranks)
        yield CommRow(
            collective=kind,
            bytes=size,
            ranks=ranks,
            count=count,
            time_ns=time_ns,
            algorithm_bytes_per_s=None if found is None else found.algorithm_bytes_per_s,
            bus_bytes_per_s=None if found is None else found.bus_bytes_per_s,
            without_waiting=whole,
        )


def _waits(table: pl.DataFrame) -> Iterator[RankWait]:
    met = table.filter(pl.col("wait_ns").is_not_null())
    alone = pl.col("alone_ns")
    decided = met.filter(alone > 0).group_by("communicator").agg(pl.col("number").n_unique().alias("decided"))
    sums = met.group_by("communicator", "rank").agg(
        pl.len().alias("collectives"),
        pl.col("wait_ns").sum(),
        pl.col("transfer_ns").sum(),
        (alone > 0).sum().alias("last"),
        alone.sum(),
    )
    told = sums.join(decided, on="communicator", how="left").with_columns(
        pl.col("decided").fill_null(0), pl.len().over("communicator").alias("ranks")
    )
    for row in told.sort("communicator", "rank").iter_rows(named=True):
        yield RankWait(
            communicator=row["communicator"],
            rank=row["rank"],
            collectives=row["collectives"],
            wait_ns=row["wait_ns"],
            transfer_ns=row["transfer_ns"],
            last=row["last"],
            decided=row["decided"],
            kept_waiting_ns=row["alone_ns"],
            stands_out=stands_out(row["last"], row["decided"], row["ranks"], row["alone_ns"], row["transfer_ns"]),
        )


def _of_ranks(read: Recordings) -> Iterator[str]:
    """Problems of the traces, and the ranks without one."""
    for trace in read.traces:
        yield from (f"{trace.name}: {warning}" for warning in trace.source.warnings)
    size = max((trace.metadata.world_size or 0 for trace in read.traces), default=0)
    told = without_recording(size, read.ranks)
    if told is not None:
        yield told


def _notes(table: pl.DataFrame) -> Iterator[str]:
    alone = table.filter(pl.col("wait_ns").is_null())["number"].n_unique()
    if alone:
        yield (
            f"{alone:,} collectives lack ranks of their group: waiting and transfer cannot be separated there, and "
            f"times are the shortest of the ranks that are present"
        )
    if table["kind"].null_count():
        yield "kernels of collectives without a known convention are listed as of unknown kind"
