"""Which recording stands for which rank, where windows of one process, copies and files without a rank are given."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from whystall.trace.model import Trace

_RANK_IN_NAME: Final = re.compile(r"rank[-_]?(\d{1,6})", re.IGNORECASE)
_TIMED_TABLES: Final = ("operators", "python_functions", "runtime_calls", "device_events", "annotations")
_COMPARE: Final = "two runs are compared with `whystall compare`"
_MOST_NAMES: Final = 4


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a recording from others: the rank that it or its name states, when it was made, and a digest of it.

    All that is asked of a recording here, so that the same can be asked of a thousand that nobody holds at once.
    """

    name: str
    rank: int | None
    start_ns: int
    end_ns: int
    digest: str

    def overlaps(self, other: Facts) -> bool:
        """Whether both were recorded at some moment: then they are of different processes."""
        return self.start_ns <= other.end_ns and other.start_ns <= self.end_ns


def facts_of(trace: Trace, *, alone: bool = False) -> Facts:
    """The facts of a trace that is loaded; one that is ``alone`` has no twin to be told from."""
    frames = [frame for table in _TIMED_TABLES if len(frame := getattr(trace, table))]
    starts = [int(frame["ts_ns"].min()) for frame in frames]
    ends = [int((frame["ts_ns"] + frame["duration_ns"]).max()) for frame in frames]
    return Facts(
        name=trace.name,
        rank=trace.rank if trace.rank is not None else rank_in_name(trace.name),
        start_ns=min(starts, default=0),
        end_ns=max(ends, default=0),
        digest="" if alone else _digest(trace),
    )


def rank_in_name(name: str) -> int | None:
    """The rank that the name of a file states, such as ``rank3.trace.json``.

    >>> rank_in_name("rank_12.json"), rank_in_name("trace.json")
    (12, None)
    """
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None


def _digest(trace: Trace) -> str:
    """The same for two files that hold the same recording, whatever they are called."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{trace.source.raw_bytes}/{trace.source.events}".encode())
    digest.update(msgspec.msgpack.encode(trace.metadata))
    for table in _TIMED_TABLES:
        frame = getattr(trace, table)
        for column in ("ts_ns", "duration_ns"):
            digest.update(np.ascontiguousarray(frame[column].to_numpy()).data)
        digest.update(f"{table}/{len(frame)}".encode())
    return digest.hexdigest()


def one_per_rank(recordings: Sequence[Facts]) -> tuple[list[int], list[int], list[str]]:
    """The places of those that stand for a rank each, by rank, their ranks (no two alike), and sentences on the others.

    Of one rank's recordings one after another the latest counts (of several ranks the latest that most of them share).
    """
    distinct, twice = _distinct(recordings)
    kept, left_out = _without_windows(distinct)
    ranks, renumbered = _numbered(kept)
    in_order = sorted(range(len(kept)), key=ranks.__getitem__)
    notes = [*twice, *left_out, *renumbered, *_strangers(kept)]
    place = {one.digest: number for number, one in reversed(list(enumerate(recordings)))}
    return [place[kept[one].digest] for one in in_order], [ranks[one] for one in in_order], notes


def _distinct(recordings: Sequence[Facts]) -> tuple[list[Facts], list[str]]:
    """The recordings without those that hold what one before them holds."""
    kept: dict[str, Facts] = {}
    notes = []
    for one in recordings:
        twin = kept.setdefault(one.digest, one)
        if twin is not one:
            notes.append(f"{one.name} holds the same recording as {twin.name}: it counts once")
    return list(kept.values()), notes


def _without_windows(recordings: list[Facts]) -> tuple[list[Facts], list[str]]:
    """One recording of each rank: the others were made before or after it. Those made at the same time all stay."""
    of_rank: dict[int, list[Facts]] = {}
    for one in recordings:
        if one.rank is not None:
            of_rank.setdefault(one.rank, []).append(one)
    if all(len(own) == 1 for own in of_rank.values()):
        return recordings, []
    moment = _latest_shared(of_rank)
    gone: list[Facts] = []
    notes = []
    for rank, own in of_rank.items():
        chosen = max(own, key=lambda one: (one.overlaps(moment), one.start_ns))
        earlier = [one for one in own if not one.overlaps(chosen)]
        gone += earlier
        if earlier:
            notes.append(
                f"rank {rank} was recorded more than once and {chosen.name} is diagnosed; left out: "
                f"{_names(earlier)} (analyze a file by itself to see it; {_COMPARE})"
            )
    return [one for one in recordings if one not in gone], notes


def _latest_shared(of_rank: dict[int, list[Facts]]) -> Facts:
    """The latest of the recordings that most ranks have a counterpart of."""
    everything = [one for own in of_rank.values() for one in own]
    return max(
        everything,
        key=lambda one: (sum(any(map(one.overlaps, own)) for own in of_rank.values()), one.start_ns),
    )


def _numbered(recordings: list[Facts]) -> tuple[list[int], list[str]]:
    """A rank per recording, no two alike: the one stated, else the next free number."""
    taken: set[int] = set()
    ranks: list[int | None] = []
    notes = []
    for one in recordings:
        wanted = one.rank
        if wanted is not None and wanted in taken:
            notes.append(f"{one.name} says it is rank {wanted}, as another file does; it is listed under a free number")
            wanted = None
        if wanted is not None:
            taken.add(wanted)
        ranks.append(wanted)
    free = (number for number in range(len(recordings) + len(taken) + 1) if number not in taken)
    return [next(free) if rank is None else rank for rank in ranks], notes


def _strangers(recordings: list[Facts]) -> list[str]:
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


def _names(recordings: list[Facts]) -> str:
    names = [one.name for one in recordings]
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
