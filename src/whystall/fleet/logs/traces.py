"""The collectives of a folder of traces, and nothing else of them: who comes last, in a fraction of an analysis's time.

What is let through of a trace is what says that it is a collective. Waiting is told from transfer as the analysis of
all events does it: ranks' clocks are set by the ends of the collectives that they share, a rank waits until the last
one has come.
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
from whystall.trace.files import head_of
from whystall.trace.load import load_traces
from whystall.trace.model import Trace
from whystall.trace.ranks import facts_of, of_each_rank
from whystall.trace.readers.kineto.reader import KinetoReader
from whystall.trace.readers.kineto.sieve import CollectivesReader
from whystall.trace.windows import as_one, moved_by
from whystall.vocabulary.collectives import kind_named

__all__ = ["READER", "from_traces", "is_trace"]

_GROUP: Final = ["group", "group_ranks"]


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
    """Bandwidths without waiting, and each rank's waits. Raises ``InputError`` where no trace tells of a collective."""
    failures: list[str] = []
    traces: list[Trace] = []
    for path in paths:
        try:
            traces += _read(path)
        except InputError as error:
            failures.append(f"{error}")
    if not traces:
        raise InputError("; ".join(failures))
    ranks, of_rank, notes = _of_each_rank(traces)
    attendances = [
        attendance_of(trace, rank, classify(trace.device_events).class_of)
        for trace, rank in zip(of_rank, ranks, strict=True)
    ]
    if not any(len(one.start) for one in attendances):
        raise InputError("; ".join(["the traces tell of no collective", *failures]))
    table = _table(attendances)
    return CommLog(
        format="PyTorch traces",
        files=len(paths) - len(failures),
        rows=tuple(_rows(table)),
        waits=tuple(_waits(table)),
        communicators=table["communicator"].n_unique(),
        notes=(*failures, *notes, *_notes(table)),
    )


def _read(path: Path) -> list[Trace]:
    """What a trace says of collectives; all of one in which no device carried any out, but a library on the host."""
    found = load_traces(path, cache=False, readers=[READER])
    on_device = any(len(trace.device_events) for trace in found)
    return found if on_device else load_traces(path, cache=False, readers=[KinetoReader()])


def _of_each_rank(traces: Sequence[Trace]) -> tuple[list[int], list[Trace], list[str]]:
    facts = [facts_of(trace) for trace in traces]
    places, ranks, notes = of_each_rank(facts)
    moved = moved_by([[facts[place] for place in own] for own in places])
    whole = [as_one([traces[place] for place in own], by) for own, by in zip(places, moved, strict=True)]
    return ranks, whole, notes


def _table(attendances: Sequence[Attendance]) -> pl.DataFrame:
    """Every rank's collectives: rank, communicator, kind, bytes, ranks to come, number of the meeting, times in ns.

    ``wait_ns`` and ``transfer_ns`` are null where not all ranks of the group are there.
    """
    numbers = meetings(attendances)
    waits = waiting(attendances, numbers, rank_clocks(attendances, numbers))
    parts = [
        one.records.select("collective", "group", "group_ranks", "group_size", "bytes", WANTED).with_columns(
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
        pl.col("wanted").first().alias("ranks"),
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
    ranks = pl.len().over("communicator").alias("ranks")
    for row in (
        sums.join(decided, on="communicator", how="left")
        .with_columns(ranks)
        .sort("communicator", "rank")
        .iter_rows(named=True)
    ):
        yield RankWait(
            communicator=row["communicator"],
            rank=row["rank"],
            collectives=row["collectives"],
            wait_ns=row["wait_ns"],
            transfer_ns=row["transfer_ns"],
            last=row["last"],
            decided=row["decided"] or 0,
            kept_waiting_ns=row["alone_ns"],
            stands_out=stands_out(row["last"], row["decided"] or 0, row["ranks"], row["alone_ns"], row["transfer_ns"]),
        )


def _notes(table: pl.DataFrame) -> Iterator[str]:
    alone = table.filter(pl.col("wait_ns").is_null())["number"].n_unique()
    if alone:
        yield (f"of {alone:,} collectives not all ranks of the group are there: waiting cannot be told from transfer")
    unknown = sorted(set(table.filter(pl.col("kind").is_null())["collective"].to_list()) - {None})
    if unknown:
        yield f"{len(unknown)} kinds of kernels are of no collective that a convention is known for"
