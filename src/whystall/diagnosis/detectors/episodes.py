"""Episodes in a recording: occasional work, identified by name, or as long Python without a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import ANY, class_timeline, within
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.detectors.host_calls import waits_before
from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.detectors.stretches import recurrence, stretches
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import codes, distinct, matching, rows_by_value
from whystall.vocabulary.episodes import Episode, is_episode
from whystall.vocabulary.runtime_calls import is_call

_PRODUCT: Final = re.compile(r"^aten::(addmm|mm|bmm|baddbmm|linear|matmul|_?convolution|.*attention)(_backward)?$")
# Before a state is saved it is copied from the device: in many copies, or in a few large ones.
_MANY_COPIES: Final = 16
_STATE_BYTES: Final = 1 << 22
_COPY_PAUSE_NS: Final = 5_000_000
_MOSTLY: Final = 0.7
_ALL_BUT_A_REST: Final = 0.95
# If a run's collections take far longer than the silent stretches, they are in other places.
_AT_MOST: Final = 2.0


def named_episodes(case: Case, cause: str, kind: Episode) -> Iterator[Replayed]:
    """Episodes of a kind that annotations and Python frames on the training thread name."""
    for rank in case.ranks:
        begin, end = named_times(rank, kind)
        if len(begin):
            yield episode(case, rank, cause, begin, end)


def _is_the_job(rank: RankCase, kind: Episode) -> bool:
    """Whether nearly all of a rank's work is in spans of a kind, one to a step at the most: they interrupt nothing."""
    begin, end, _ = _named(rank, [kind])
    starts = np.sort(rank.trace.steps["ts_ns"].to_numpy())
    single = np.searchsorted(starts, end) - np.searchsorted(starts, begin) <= 1
    begin, end = begin[single], end[single]
    if rank.on_device:
        work, inside = durations(rank), rank.launched_in(begin, end)
    else:
        table = rank.trace.operators
        work, inside = table["self_ns"].to_numpy().astype(np.float64), within(table["ts_ns"].to_numpy(), begin, end)
    return bool(0 < _ALL_BUT_A_REST * work.sum() <= work[inside].sum())


def named_times(rank: RankCase, *kinds: Episode) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of the episodes of some kinds on the training thread, or on those of its backward pass.

    A span that covers a whole step is the loop, under any name. Where nearly all work is evaluation, that is the job.
    """
    kinds = tuple(kind for kind in kinds if kind != "evaluation" or not _is_the_job(rank, kind))
    if not kinds:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    saves = [kind for kind in kinds if kind == "checkpoint"]
    parts = [_named(rank, [kind for kind in kinds if kind != "checkpoint"])] if len(saves) < len(kinds) else []
    if saves:
        begin, end, thread = _named(rank, saves)
        # A save multiplies no matrices: a span that does has that name because its activations are recomputed.
        kept = ~_multiplies(rank, begin, end)
        parts.append((begin[kept], end[kept], thread[kept]))
    begin, end, thread = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(begin, kind="stable")
    begin, end, thread = begin[order], end[order], thread[order]
    # The training thread waits for autograd's threads: rare work there delays it as well.
    own = ((thread == rank.training) | np.isin(thread, rank.backward_threads)) & ~_holds_a_step(rank, begin, end)
    return begin[own], end[own]


def _named(rank: RankCase, kinds: Sequence[Episode]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Begin, end and thread of annotations and Python frames that name an episode of some kinds."""
    return rank.intervals(
        rank.host_named(
            lambda name: any(_is_episode(name, kind) for kind in kinds), ("annotations", "python_functions")
        )
    )


def _multiplies(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Mask:
    """Marks the intervals in which an operator on any thread multiplies matrices or convolves."""
    products = matching(rank.trace.operators["name"], lambda name: bool(_PRODUCT.search(name)))
    at = np.sort(rank.trace.operators["ts_ns"].to_numpy()[products])
    inside: Mask = np.searchsorted(at, end) > np.searchsorted(at, begin)
    return inside


def _holds_a_step(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Mask:
    """Which of some intervals begin no later than a step and end no earlier than it."""
    steps = rank.trace.steps.sort("ts_ns")
    starts = np.append(steps["ts_ns"].to_numpy(), np.iinfo(np.int64).max)
    ends = np.append((steps["ts_ns"] + steps["duration_ns"]).to_numpy(), np.iinfo(np.int64).max)
    holds: Mask = ends[np.searchsorted(starts, begin)] <= end  # steps do not overlap
    return holds


def _is_episode(name: str, kind: Episode) -> bool:
    return is_episode(name, kind, "event") and "Optimizer" not in name


def episode(
    case: Case, rank: RankCase, cause: str, begin: NDArray[np.int64], end: NDArray[np.int64], **more: object
) -> Replayed:
    """A candidate without the work in some intervals: the host's time, its launches, and its waits."""
    host = case.host_within(rank, begin, end)
    device = case.nodes(rank, device=rank.launched_in(begin, end))
    waits = waits_before(case, host)
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
    """Long unnamed Python in a minority of a rank's steps.

    It ``saves`` after a state was copied from the device. It ``collects`` garbage if Python's own counters show the
    same mean time for the run's collections: then nearly all of it is that.
    """

    rank: RankCase
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    saves: Mask
    collects: Mask
    launched: NDArray[np.int64]

    def from_first_copy(self) -> NDArray[np.int64]:
        """Where each stretch that saves begins: with its first copy, or the wait for the device just before it."""
        first = np.array([_first_copy(self.launched, at) for at in self.begin[self.saves]], np.int64)
        return _with_sync_before(self.rank, first)


def silent_episodes(case: Case) -> Iterator[Silent]:
    """Long stretches of unnamed Python in a minority of the steps, for each rank on a device."""
    for rank in case.ranks:
        if not rank.on_device:
            continue
        begin, end = stretches(case, rank, rare=True)
        silent = _is_silent(rank, begin, end) if len(begin) else np.zeros(0, np.bool_)
        begin, end = begin[silent], end[silent]
        if len(begin):
            copies = rank.device_named(lambda name: "DtoH" in name) & (rank.launch_time >= 0)
            order = np.argsort(rank.launch_time[copies], kind="stable")
            launched = rank.launch_time[copies][order]
            size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()[copies][order]
            saves = _after_a_state(launched, size, begin)
            silent_ns = _per_step_ns(rank, begin[~saves], end[~saves])
            collects = ~saves & (_MOSTLY * silent_ns < (collected_ns(case, rank) or 0.0) < _AT_MOST * silent_ns)
            yield Silent(rank, begin, end, saves, collects, launched)


def _per_step_ns(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> float:
    return float((end - begin).sum()) / max(len(rank.trace.steps), 1)


def collected_ns(case: Case, rank: RankCase) -> float | None:
    """How long a step of a rank's run collects garbage, on average, by Python's own account; ``None``: not known."""
    runs = [run for run in case.runs if run.rank == rank.rank and run.measured >= FEWEST_SAMPLED_STEPS]
    return max((run.shares.get("gc", 0.0) * run.mean_ns for run in runs), default=None)


def _is_silent(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Mask:
    """Marks the stretches in which, most of the time, no thread runs an operator, a call or an episode.

    Other annotations, such as that of a step or a backward pass, name constant work and not rare work.
    """
    first, last = (
        np.concatenate(both)
        for both in zip(_calls_within(rank, begin, end), named_times(rank, *get_args(Episode)), strict=True)
    )
    named = class_timeline(first, last, np.zeros(len(first), np.uint8)).cumulative(ANY).within(begin, end)
    silent: Mask = named * 2 < end - begin
    return silent


def _calls_within(
    rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of the operators and calls, on any thread, that overlap one of some stretches."""
    tables = [getattr(rank.trace, name) for name in ("operators", "runtime_calls")]
    first = np.concatenate([table["ts_ns"].to_numpy() for table in tables])
    last = first + np.concatenate([table["duration_ns"].to_numpy() for table in tables])
    # Stretches do not overlap: an event that begins after one and ends before the next lies outside of both.
    after = np.searchsorted(end, first, side="right")
    near = last > np.append(begin, np.iinfo(np.int64).max)[after]
    return first[near], last[near]


def annotation_around_nodes(case: Case, rank: RankCase, nodes: Mask) -> str | None:
    """The innermost annotation that most of some host nodes lie in."""
    graph = case.replayed
    rows = np.flatnonzero(case.in_window(nodes))
    if not len(rows):
        return None
    rows = rows[np.argsort(graph.start[rows], kind="stable")]
    times = (graph.start[rows], graph.start[rows] + graph.duration[rows])
    return annotation_around(rank, *(graph.own_times(rank.rank, at) for at in times))


def mostly_within(case: Case, rank: RankCase, nodes: Mask) -> tuple[Evidence, ...]:
    """The annotation that most of some host nodes lie in, as evidence: a place where no line is known."""
    within = annotation_around_nodes(case, rank, nodes)
    return () if within is None else (evidence.text(evidence.WITHIN, within),)


def annotation_around(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> str | None:
    """The annotation of least time that most of some stretches lie in, other than that of a step."""
    table = rank.trace.annotations
    names, marks = distinct(table["name"]), set(rank.trace.steps["name"].to_list())
    first, length = table["ts_ns"].to_numpy(), table["duration_ns"].to_numpy()
    # Stretches do not overlap: an annotation overlaps one if one ends after it begins and begins before it ends.
    after = np.searchsorted(end, first, side="right")
    holds = (after < len(begin)) & (begin[np.minimum(after, len(begin) - 1)] < first + length)
    own = np.flatnonzero(holds & (table["thread"].to_numpy() == rank.training))
    found: list[tuple[int, str]] = []
    for code, places in rows_by_value(codes(table["name"])[own]).items():
        rows = own[places]
        line = class_timeline(first[rows], (first + length)[rows], np.zeros(len(rows), np.uint8)).cumulative(ANY)
        if names[code] not in marks and 2 * int(line.within(begin, end).sum()) > int((end - begin).sum()):
            found.append((int(length[rows].sum()), names[code]))
    return min(found)[1] if found else None


def _after_a_state(launched: NDArray[np.int64], size: NDArray[np.int64], begin: NDArray[np.int64]) -> Mask:
    """Before which of some instants a state was copied from the device, in one unbroken series."""
    total = np.append(0, np.cumsum(size))
    out = np.zeros(len(begin), np.bool_)
    for place, at in enumerate(begin.tolist()):
        first, last = _series_start(launched, at), int(np.searchsorted(launched, at))
        out[place] = last - first >= _MANY_COPIES or total[last] - total[first] >= _STATE_BYTES
    return out


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


def _first_copy(launched: NDArray[np.int64], at: int) -> int:
    return int(launched[_series_start(launched, at)])


def _series_start(launched: NDArray[np.int64], at: int) -> int:
    index = int(np.searchsorted(launched, at))
    later = at
    while index > 0 and later - launched[index - 1] <= _COPY_PAUSE_NS:
        index -= 1
        later = int(launched[index])
    return index
