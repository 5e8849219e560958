"""Which recording stands for which rank, where windows of one process, copies and files without a rank are given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whystall.trace.model import Trace

_RANK_IN_NAME: Final = re.compile(r"rank[-_]?(\d{1,6})", re.IGNORECASE)
_TIMED_TABLES: Final = ("operators", "python_functions", "runtime_calls", "device_events", "annotations")
_COMPARE: Final = "two runs are compared with `whystall compare`"
_MOST_NAMES: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    """A trace, the rank that it or its name states, and when it was made."""

    trace: Trace
    rank: int | None
    start_ns: int
    end_ns: int

    def overlaps(self, other: _Recording) -> bool:
        """Whether both were recorded at some moment: then they are of different processes."""
        return self.start_ns <= other.end_ns and other.start_ns <= self.end_ns


def one_per_rank(traces: Sequence[Trace]) -> tuple[list[Trace], list[int], list[str]]:
    """The traces that stand for a rank each, by rank (no two alike), and a sentence on each that was left out.

    Of one rank's recordings one after another the latest counts (of several ranks the latest that most of them share).
    """
    distinct, twice = _distinct(traces)
    recordings = [_recording(trace) for trace in distinct]
    kept, left_out = _without_windows(recordings)
    ranks, renumbered = _numbered(kept)
    in_order = sorted(range(len(kept)), key=ranks.__getitem__)
    notes = [*twice, *left_out, *renumbered, *_strangers(kept)]
    return [kept[place].trace for place in in_order], [ranks[place] for place in in_order], notes


def _distinct(traces: Sequence[Trace]) -> tuple[list[Trace], list[str]]:
    """The traces without those that hold what one before them holds."""
    kept: list[Trace] = []
    notes = []
    for trace in traces:
        twin = next((one for one in kept if _same(one, trace)), None)
        if twin is None:
            kept.append(trace)
        else:
            notes.append(f"{trace.name} holds the same recording as {twin.name}: it counts once")
    return kept, notes


def _same(one: Trace, other: Trace) -> bool:
    if (one.source.raw_bytes, one.source.events, one.metadata) != (
        other.source.raw_bytes,
        other.source.events,
        other.metadata,
    ):
        return False
    columns = ["ts_ns", "duration_ns"]
    return all(
        getattr(one, table).select(columns).equals(getattr(other, table).select(columns)) for table in _TIMED_TABLES
    )


def _recording(trace: Trace) -> _Recording:
    match = _RANK_IN_NAME.search(trace.name)
    rank = trace.rank if trace.rank is not None else int(match[1]) if match else None
    frames = [frame for table in _TIMED_TABLES if len(frame := getattr(trace, table))]
    starts = [int(frame["ts_ns"].min()) for frame in frames]
    ends = [int((frame["ts_ns"] + frame["duration_ns"]).max()) for frame in frames]
    return _Recording(trace, rank, min(starts, default=0), max(ends, default=0))


def _without_windows(recordings: list[_Recording]) -> tuple[list[_Recording], list[str]]:
    """One recording of each rank: the others were made before or after it. Those made at the same time all stay."""
    of_rank: dict[int, list[_Recording]] = {}
    for one in recordings:
        if one.rank is not None:
            of_rank.setdefault(one.rank, []).append(one)
    if all(len(own) == 1 for own in of_rank.values()):
        return recordings, []
    moment = _latest_shared(of_rank)
    gone: list[_Recording] = []
    notes = []
    for rank, own in of_rank.items():
        chosen = max(own, key=lambda one: (one.overlaps(moment), one.start_ns))
        earlier = [one for one in own if not one.overlaps(chosen)]
        gone += earlier
        if earlier:
            notes.append(
                f"rank {rank} was recorded more than once and {chosen.trace.name} is diagnosed; left out: "
                f"{_names(earlier)} (analyze a file by itself to see it; {_COMPARE})"
            )
    return [one for one in recordings if one not in gone], notes


def _latest_shared(of_rank: dict[int, list[_Recording]]) -> _Recording:
    """The latest of the recordings that most ranks have a counterpart of."""
    everything = [one for own in of_rank.values() for one in own]
    return max(
        everything,
        key=lambda one: (sum(any(map(one.overlaps, own)) for own in of_rank.values()), one.start_ns),
    )


def _numbered(recordings: list[_Recording]) -> tuple[list[int], list[str]]:
    """A rank per recording, no two alike: the one stated, else the next free number."""
    taken: set[int] = set()
    ranks: list[int | None] = []
    notes = []
    for one in recordings:
        wanted = one.rank
        if wanted is not None and wanted in taken:
            notes.append(
                f"{one.trace.name} says it is rank {wanted}, as another file does; it is listed under a free number"
            )
            wanted = None
        if wanted is not None:
            taken.add(wanted)
        ranks.append(wanted)
    free = (number for number in range(len(recordings) + len(taken) + 1) if number not in taken)
    return [next(free) if rank is None else rank for rank in ranks], notes


def _strangers(recordings: list[_Recording]) -> list[str]:
    """A sentence on files that state no rank and were recorded when no other was."""
    alone = [
        one
        for one in recordings
        if one.rank is None and not any(one.overlaps(other) for other in recordings if other is not one)
    ]
    if not alone or len(recordings) == 1:
        return []
    sentence = (
        "no rank is stated, and nothing else was recorded at that time, yet all files are read as ranks of one job"
    )
    return [f"{_names(alone)}: {sentence}; {_COMPARE}"]


def _names(recordings: list[_Recording]) -> str:
    names = [one.trace.name for one in recordings]
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
