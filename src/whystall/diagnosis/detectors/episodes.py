"""What happens in some steps only, as a recording shows it: by name, or as long Python that nothing names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import ANY, class_timeline
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.stretches import recurrence, stretches
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Change, EdgeKind, Mask
from whystall.vocabulary.episodes import Episode, is_episode
from whystall.vocabulary.runtime_calls import is_call

_MANY_COPIES: Final = 16
_COPY_PAUSE_NS: Final = 5_000_000


def named_episodes(case: Case, cause: str, kind: Episode) -> Iterator[Replayed]:
    """What annotations and Python frames on the training thread name as an episode of a kind."""
    for rank in case.ranks:
        begin, end = named_times(rank, kind)
        if len(begin):
            yield episode(case, rank, cause, begin, end)


def named_times(rank: RankCase, *kinds: Episode) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of the episodes of some kinds on the training thread."""
    events = rank.host_named(
        lambda name: any(_is_episode(name, kind) for kind in kinds), ("annotations", "python_functions")
    )
    begin, end, thread = rank.intervals(events)
    own = thread == rank.training
    return begin[own], end[own]


def _is_episode(name: str, kind: Episode) -> bool:
    return is_episode(name, kind, "event") and "Optimizer" not in name


def episode(
    case: Case, rank: RankCase, cause: str, begin: NDArray[np.int64], end: NDArray[np.int64], **more: object
) -> Replayed:
    """A candidate that goes without what lies in some intervals: the host's time, what it launched, and its waits."""
    graph = case.replayed
    host = case.host_within(rank, begin, end)
    device = case.nodes(rank, device=rank.launched_in(begin, end))
    waits = (graph.edge_kind == EdgeKind.SYNC) & host[graph.target]
    outer = outermost(begin, end)
    per_step = min(_union_ns(begin, end) // max(len(rank.trace.steps), 1), case.step_ns)
    values = {
        "attributed_ns": per_step,
        "evidence": (
            evidence.time("spent in it, on average", per_step, case.events_of(host), per=case.per),
            evidence.count("times in the recording", len(outer)),
        ),
        "removal": Change(duration=case.without(host | device).duration, removed_edges=waits),
        "method": "replay: without it",
        "ranks": (rank.rank,),
        "recurrence": recurrence(case, rank, outer),
        "uncertainty": 0.15,
        "confidence": 0.9,
        "rivals": ("host.python", "host.sync", "host.gc"),
        **more,
    }
    return Replayed(cause=cause, **values)  # type: ignore[arg-type]


def outermost(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The begins of those of some intervals that lie in no other of them."""
    reached = np.maximum.accumulate(end)
    outer: NDArray[np.int64] = begin[np.append(True, begin[1:] >= reached[:-1])]
    return outer


def _union_ns(begin: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """The time in one at least of some intervals, which are sorted by begin."""
    before = np.append(begin[:1], np.maximum.accumulate(end)[:-1])
    return int(np.maximum(end - np.maximum(begin, before), 0).sum())


@dataclass(frozen=True, slots=True)
class Silent:
    """Long Python in a minority of a rank's steps, which nothing names; ``saves``.

    After many copies from the device.
    """

    rank: RankCase
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    saves: Mask
    launched: NDArray[np.int64]

    def from_first_copy(self) -> NDArray[np.int64]:
        """Where each stretch that saves begins: with its first copy, or the wait for the device just before it."""
        first = np.array([_first_copy(self.launched, at) for at in self.begin[self.saves]], np.int64)
        return _with_sync_before(self.rank, first)


def silent_episodes(case: Case) -> Iterator[Silent]:
    """Of each rank on a device without Python stacks: its long stretches of Python in a minority of the steps."""
    for rank in case.ranks:
        if not rank.on_device or not rank.trace.python_functions.is_empty():
            continue
        begin, end = stretches(case, rank, rare=True)
        silent = _is_silent(rank, begin, end) if len(begin) else np.zeros(0, np.bool_)
        begin, end = begin[silent], end[silent]
        if len(begin):
            copies = rank.device_named(lambda name: "DtoH" in name)
            launched = np.sort(rank.launch_time[copies & (rank.launch_time >= 0)])
            before = np.array([_copies_before(launched, at) for at in begin], np.int64)
            yield Silent(rank, begin, end, before >= _MANY_COPIES, launched)


def _is_silent(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Mask:
    """In which of some stretches no operator, call or annotation runs most of the time, on any thread.

    Annotations around whole steps name nothing.
    """
    events = rank.host_named(lambda _: True, ("operators", "annotations", "runtime_calls"))
    first, last, _ = rank.intervals(events)
    steps = rank.trace.steps
    at, until = steps["ts_ns"].to_numpy(), (steps["ts_ns"] + steps["duration_ns"]).to_numpy()
    next_step = np.searchsorted(at, first, side="left")
    around = (next_step < len(at)) & (until[np.minimum(next_step, len(at) - 1)] <= last)
    one_class = np.zeros(np.count_nonzero(~around), np.uint8)
    named = class_timeline(first[~around], last[~around], one_class).cumulative(ANY).within(begin, end)
    silent: Mask = named * 2 < end - begin
    return silent


def _with_sync_before(rank: RankCase, begin: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each instant, or the begin of the wait for the device that ended just before it."""
    start, end, _ = rank.intervals(rank.host_named(lambda name: is_call(name, "sync"), ("runtime_calls",)))
    if not len(start):
        return begin
    order = np.argsort(end, kind="stable")
    index = np.searchsorted(end[order], begin, side="right") - 1
    last = order[np.maximum(index, 0)]
    near = (index >= 0) & (begin - end[last] <= _COPY_PAUSE_NS)
    return np.where(near, start[last], begin)


def _copies_before(launched: NDArray[np.int64], at: int) -> int:
    """How many copies were launched in one unbroken series just before an instant."""
    return int(np.searchsorted(launched, at)) - _series_start(launched, at)


def _first_copy(launched: NDArray[np.int64], at: int) -> int:
    return int(launched[_series_start(launched, at)])


def _series_start(launched: NDArray[np.int64], at: int) -> int:
    index = int(np.searchsorted(launched, at))
    later = at
    while index > 0 and later - launched[index - 1] <= _COPY_PAUSE_NS:
        index -= 1
        later = int(launched[index])
    return index
