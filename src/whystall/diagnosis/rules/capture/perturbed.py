"""A recording with too little evidence about the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.device import DeviceEvents, devices_of
from whystall.analysis.intervals import gaps_between
from whystall.analysis.wholeness import graphs_without_kernels, unseen_device, unseen_kernels
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.gains import percent
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.units import duration
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.runtime_calls import is_call

CAUSE: Final = cause_beside(__name__)
_MOSTLY_EMPTY: Final = CAUSE.threshold("mostly_empty")
_UNLIKE: Final = CAUSE.threshold("unlike")
_BETWEEN_KERNELS: Final = CAUSE.threshold("between_kernels")
_MOST_UNSEEN: Final = CAUSE.threshold("most_unseen")


def _too_little(
    rank: RankCase, *, attributed_ns: int, evidence: tuple[Evidence, ...], sentence: str, overrules: bool = True
) -> Sampled:
    """A sentence on a shortcoming of a rank's recording; nothing of it is a gain."""
    return Sampled(
        cause=CAUSE.id,
        attributed_ns=attributed_ns,
        evidence=evidence,
        saved=(0.0, 0.0, 0.0),
        method="none: the recording says too little",
        ranks=(rank.rank,),
        overrules=overrules,
        if_hidden=sentence,
    )


def empty(case: Case) -> Iterator[Sampled]:
    """A recording in which the device hardly works, without step marks that would show the usual load."""
    for rank in case.ranks:
        if not rank.on_device or len(rank.trace.steps) > 1:
            continue
        events = rank.trace.device_events
        tables = (rank.trace.operators, rank.trace.annotations, rank.trace.python_functions, rank.trace.runtime_calls)
        starts = [int(table["ts_ns"][0]) for table in tables if len(table)]
        end = int((events["ts_ns"] + events["duration_ns"]).max())  # type: ignore[arg-type]
        whole = max(end - min([*starts, int(events["ts_ns"][0])]), 1)
        busy = sum(device.busy_ns for device in rank.analysis.devices)
        gaps = np.diff(events["ts_ns"].to_numpy())
        one_gap = bool(len(gaps)) and int(gaps.max()) * 2 > whole
        if busy >= _MOSTLY_EMPTY * whole or not one_gap:
            continue
        yield _too_little(
            rank,
            attributed_ns=whole - busy,
            evidence=(
                evidence.time("length of the recording", whole),
                evidence.time("of it with device events", busy),
            ),
            sentence=f"the recording is mostly empty: device events fill {busy / 1e6:.3g} of "
            f"{whole / 1e6:.4g} ms, and a single gap is most of the rest; record a window in which the device works",
        )


def without_device(case: Case) -> Iterator[Sampled]:
    """Work for an unrecorded device: the host alone does not show the device's delays."""
    for rank in case.ranks:
        unseen = unseen_device(rank.trace)
        if unseen is None:
            continue
        yield _too_little(
            rank,
            attributed_ns=case.step_ns,
            evidence=(evidence.count("launches and operators without a device event", unseen.calls),),
            sentence=unseen.sentence,
        )


def without_graphs(case: Case) -> Iterator[Sampled]:
    """A recording with launches of graphs and without their kernels: no gap of the device is known to be one."""
    for rank in case.ranks:
        unseen = graphs_without_kernels(rank.trace)
        if unseen is None:
            continue
        yield _too_little(
            rank,
            attributed_ns=sum(device.idle_ns for device in rank.analysis.devices) // max(case.steps, 1),
            evidence=(
                evidence.count("launches of graphs", unseen.launches),
                evidence.count("of them without a kernel in the file", unseen.without),
            ),
            sentence="what CUDA graphs ran was not recorded: the device was not idle where it looks so; record with a "
            "profiler and driver that trace the kernels of graphs",
        )


def without_kernels(case: Case) -> Iterator[Sampled]:
    """A recording that lost kernels between others: where the device seems to idle it may have worked."""
    for rank in case.ranks:
        unseen = unseen_kernels(rank.trace)
        window = sum(device.window_ns for device in rank.analysis.devices)
        if unseen is None or unseen.idle_ns <= _MOST_UNSEEN * window:
            continue
        yield _too_little(
            rank,
            attributed_ns=unseen.idle_ns // max(case.steps, 1),
            evidence=(
                evidence.count("launches of kernels", unseen.launches),
                evidence.count("of them without a kernel in the file", unseen.without),
                evidence.time("time without device events in which these may have run", unseen.idle_ns),
            ),
            sentence=f"{unseen.without:,} of {unseen.launches:,} launches have no kernel: the profiler lost events, "
            "and the device may have worked where it seems idle; record fewer steps at a time",
        )


def within_graphs(case: Case) -> Iterator[Sampled]:
    """Gaps between the kernels of a graph, which a profiler makes longer."""
    for rank in case.ranks:
        devices = devices_of(rank.trace, rank.workings.classified.class_of).values()
        gaps = [_within_graphs(rank, events) for events in devices]
        window = sum(device.window_ns for device in rank.analysis.devices)
        lengths = np.concatenate(gaps) if gaps else np.zeros(0, np.int64)
        share = int(lengths.sum()) / max(window, 1)
        if share < _BETWEEN_KERNELS:
            continue
        each = int(np.median(lengths))
        yield _too_little(
            rank,
            overrules=False,
            attributed_ns=int(share * case.step_ns),
            evidence=(
                evidence.share("of the device's time between the kernels of its graphs", share),
                evidence.time("such a gap, in the median", each),
            ),
            sentence=f"the device idles for {percent(share)} of its time between the kernels of its graphs "
            f"({duration(each)} each): a profiler that follows each kernel of a graph makes these gaps longer; measure "
            "a step without it before you change anything",
        )


def _within_graphs(rank: RankCase, events: DeviceEvents) -> NDArray[np.int64]:
    """The lengths of a device's gaps between two events of one launch of a graph."""
    graphs = matching(rank.trace.runtime_calls["name"], lambda name: is_call(name, "graph"))
    of_graph = np.append(graphs, False)[rows_of(rank.trace.device_events["launch"])[events.row]]
    gaps = gaps_between(events.start, events.end)
    lengths: NDArray[np.int64] = (gaps.end - gaps.begin)[events.launches.within_one(gaps) & of_graph[gaps.next_event]]
    return lengths


def unlike_the_run(case: Case) -> Iterator[Sampled]:
    """Recorded steps that are far shorter than those of the run: they do not show the run's losses."""
    for run in case.runs:
        rank = next((rank for rank in case.ranks if rank.rank == run.rank), None)
        if rank is None or len(rank.trace.steps) < 2 or run.measured < FEWEST_SAMPLED_STEPS:
            continue
        recorded = int(np.median(np.diff(rank.trace.steps["ts_ns"].to_numpy())))
        if recorded * _UNLIKE >= run.median_ns:
            continue
        yield _too_little(
            rank,
            overrules=False,
            attributed_ns=run.median_ns - recorded,
            evidence=(
                evidence.time("a recorded step, in the median", recorded),
                evidence.time("a step of the run, in the median", run.median_ns),
            ),
            sentence="the recorded steps are far shorter than those of the run: what the run loses is not in the "
            "recording",
        )


RULE = Rule(
    CAUSE,
    (
        Finder(empty, ("trace", "device_events")),
        Finder(without_device, ("trace",)),
        Finder(without_graphs, ("trace", "device_events")),
        Finder(without_kernels, ("trace", "device_events", "launch_calls")),
        Finder(within_graphs, ("trace", "device_events", "launch_calls")),
        Finder(unlike_the_run, ("trace", "samples")),
    ),
)
