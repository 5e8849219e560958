"""Assigns recordings to ranks, where the inputs include windows of one process, copies and files without a rank."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import polars as pl

from whystall.trace.model import Trace

_RANK_IN_NAME: Final = re.compile(r"rank[-_]?([0-9]{1,6})", re.IGNORECASE)
_TIMED_TABLES: Final = ("operators", "python_functions", "runtime_calls", "device_events", "annotations")
_NUMBERED_STEP: Final = re.compile(r"^ProfilerStep\s*#\s*([0-9]+)$")
_COMPARE: Final = "two runs are compared with `whystall compare`"
_MOST_NAMES: Final = 4
_MOST_DIGITS: Final = 18


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that identify a recording: the rank that it or its name states, its start and end, and a digest.

    ``process`` is that of its thread of steps, ``first_step`` and ``last_step`` are the profiler's own numbers.

    Ordering ranks needs nothing else, so it works for a thousand recordings that are never in memory at once.
    """

    name: str
    rank: int | None
    start_ns: int
    end_ns: int
    digest: str
    process: str | None = None
    first_step: int | None = None
    last_step: int | None = None

    def goes_on_to(self, later: Facts) -> bool:
        """Whether the same process recorded the other later: its steps are counted on."""
        if self.process is None or self.last_step is None or later.first_step is None:
            return False
        return self.process == later.process and self.last_step < later.first_step and self.end_ns <= later.start_ns

    def overlaps(self, other: Facts) -> bool:
        """Whether both were recorded at some moment: then their processes differ."""
        return self.start_ns <= other.end_ns and other.start_ns <= self.end_ns


def facts_of(trace: Trace, *, alone: bool = False) -> Facts:
    """The facts of a loaded trace; one that is ``alone`` needs no digest, since it has no twin."""
    frames = [frame for table in _TIMED_TABLES if len(frame := getattr(trace, table))]
    starts = [int(frame["ts_ns"].min()) for frame in frames]
    ends = [int((frame["ts_ns"] + frame["duration_ns"]).max()) for frame in frames]
    process, numbers = _steps_of(trace)
    return Facts(
        process=process,
        first_step=min(numbers, default=None),
        last_step=max(numbers, default=None),
        name=trace.name,
        rank=trace.rank if trace.rank is not None else rank_in_name(trace.name),
        start_ns=min(starts, default=0),
        end_ns=max(ends, default=0),
        digest="" if alone else _digest(trace),
    )


def _steps_of(trace: Trace) -> tuple[str | None, list[int]]:
    """The process whose thread runs the steps, and the numbers that the profiler gave these."""
    steps = trace.steps.filter(pl.col("thread") >= 0)  # -1: a device marked it, such as a TPU
    if steps.is_empty():
        return None, []
    found = map(_NUMBERED_STEP.match, steps["name"].cast(pl.String))
    process: str | None = trace.threads["pid"][int(steps["thread"][0])]
    return process, [int(match[1][:_MOST_DIGITS]) for match in found if match]


def rank_in_name(name: str) -> int | None:
    """The rank that the name of a file states, such as ``rank3.trace.json``.

    >>> rank_in_name("rank_12.json"), rank_in_name("trace.json")
    (12, None)
    """
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None


def _digest(trace: Trace) -> str:
    """A digest of the recording; equal for two files with the same recording under different names."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{trace.source.raw_bytes}/{trace.source.events}".encode())
    digest.update(msgspec.msgpack.encode(trace.metadata))
    for table in _TIMED_TABLES:
        frame = getattr(trace, table)
        for column in ("ts_ns", "duration_ns"):
            digest.update(np.ascontiguousarray(frame[column].to_numpy()).data)
        digest.update(f"{table}/{len(frame)}".encode())
    return digest.hexdigest()


def of_each_rank(recordings: Sequence[Facts], *, windows: bool = True) -> tuple[list[list[int]], list[int], list[str]]:
    """The places of the recordings of each rank, by rank, the ranks (all distinct), and sentences on the others.

    A rank's windows are recordings of one process whose step numbers go on, in order of time. Among other recordings of
    a rank (all of them without ``windows``) the latest counts; for several ranks it is the latest that most of them
    share.
    """
    distinct, twice = _distinct(recordings)
    kept, left_out = _latest(distinct, windows=windows)
    latest = [own[-1] for own in kept]
    ranks, renumbered = _numbered(latest)
    in_order = sorted(range(len(kept)), key=ranks.__getitem__)
    notes = [*twice, *left_out, *renumbered, *_strangers(latest)]
    place = {one.digest: number for number, one in reversed(list(enumerate(recordings)))}
    return [[place[one.digest] for one in kept[rank]] for rank in in_order], [ranks[rank] for rank in in_order], notes


def _distinct(recordings: Sequence[Facts]) -> tuple[list[Facts], list[str]]:
    """The recordings without copies of earlier ones."""
    kept: dict[str, Facts] = {}
    notes = []
    for one in recordings:
        twin = kept.setdefault(one.digest, one)
        if twin is not one:
            notes.append(f"{one.name} holds the same recording as {twin.name}: it counts once")
    return list(kept.values()), notes


def _latest(recordings: list[Facts], *, windows: bool) -> tuple[list[list[Facts]], list[str]]:
    """The latest recording of each rank, after windows of the same process; those made at the same time all stay."""
    of_rank: dict[int, list[Facts]] = {}
    for one in recordings:
        if one.rank is not None:
            of_rank.setdefault(one.rank, []).append(one)
    before = _before_of_no_rank(recordings) if windows else {}
    gone = {one.digest for own in before.values() for one in own}
    notes = []
    if any(len(own) > 1 for own in of_rank.values()):
        notes = _latest_of_ranks(of_rank, before, gone, windows=windows)
    return [[*before.get(one.digest, ()), one] for one in recordings if one.digest not in gone], notes


def _before_of_no_rank(recordings: Sequence[Facts]) -> dict[str, list[Facts]]:
    """By the digest of the latest the windows before it, of processes whose files state no rank."""
    of_process: dict[str, list[Facts]] = {}
    for one in recordings:
        if one.rank is None and one.process is not None:
            of_process.setdefault(one.process, []).append(one)
    latest = [max(own, key=lambda one: one.start_ns) for own in of_process.values()]
    return {one.digest: _going_on_to(one, of_process[str(one.process)]) for one in latest}


def _latest_of_ranks(
    of_rank: Mapping[int, Sequence[Facts]], before: dict[str, list[Facts]], gone: set[str], *, windows: bool
) -> list[str]:
    """Adds each rank's windows to ``before`` its latest recording, and to ``gone`` those that do not stand alone.

    Returns a sentence on each rank with recordings that are left out.
    """
    shared = _shared_by(of_rank)
    # The latest of the recordings that most ranks have a counterpart of.
    moment = max(itertools.chain(*of_rank.values()), key=lambda one: (shared[one.digest], one.start_ns))
    notes = []
    for rank, own in of_rank.items():
        chosen = max(own, key=lambda one: (one.overlaps(moment), one.start_ns))
        others = [one for one in own if not one.overlaps(chosen)]
        alike = [one for one in others if shared[one.digest] == shared[moment.digest]] if windows else []
        joined = _going_on_to(chosen, alike)
        before[chosen.digest] = joined
        gone |= {one.digest for one in others}
        if earlier := [one for one in others if one not in joined]:
            notes.append(
                f"rank {rank} was recorded more than once and {chosen.name} is diagnosed; left out: "
                f"{_names(earlier)} (analyze a file by itself to see it; {_COMPARE})"
            )
    return notes


def _going_on_to(latest: Facts, earlier: Sequence[Facts]) -> list[Facts]:
    """The windows before the latest of the same process, in order of time."""
    found: list[Facts] = []
    for one in sorted(earlier, key=lambda one: one.start_ns, reverse=True):
        if one.goes_on_to(found[-1] if found else latest):
            found.append(one)
    return found[::-1]


def _shared_by(of_rank: Mapping[int, Sequence[Facts]]) -> dict[str, int]:
    """By the digest of each recording how many ranks recorded something at that time."""
    everything = [(rank, one) for rank, own in of_rank.items() for one in own]
    ranks = np.array([rank for rank, _ in everything])
    start, end = (np.array([getattr(one, name) for _, one in everything]) for name in ("start_ns", "end_ns"))
    return {one.digest: len(np.unique(ranks[(start <= one.end_ns) & (one.start_ns <= end)])) for _, one in everything}


def _numbered(recordings: list[Facts]) -> tuple[list[int], list[str]]:
    """A rank per recording, no two alike: the one stated, else the next free number."""
    taken: set[int] = set()
    ranks: list[int | None] = []
    notes = []
    for one in recordings:
        wanted = one.rank
        if wanted is not None and wanted in taken:
            notes.append(
                f"{one.name} is said to be rank {wanted}, as another file of that time is; it is listed under a free "
                "number"
            )
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
