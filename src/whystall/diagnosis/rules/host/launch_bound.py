"""A device that waits for the host to launch its many small kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState
from whystall.analysis.results import Device
from whystall.analysis.steadiness import steady
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.circumstances import circumstances
from whystall.diagnosis.detectors.collectives import lacks_a_stage
from whystall.diagnosis.detectors.episodes import mostly_within
from whystall.diagnosis.detectors.kernels import close_up
from whystall.diagnosis.detectors.launching import launching, median_kernel_ns
from whystall.diagnosis.detectors.loops import loops_of_calls, while_idle
from whystall.diagnosis.detectors.loops_over_elements import is_most, without_loops
from whystall.diagnosis.detectors.outer_calls import outer_calls
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import LATENCY_NS, Change, Mask, NodeKind
from whystall.trace.columns import codes, distinct, matching
from whystall.trace.link import rows_of
from whystall.vocabulary.compiled_code import REGION
from whystall.vocabulary.runtime_calls import is_call

CAUSE: Final = cause_beside(__name__)
_GRAPH_GAP_NS: Final = int(CAUSE.threshold("graph_gap_ns"))
_SLOW_CALL_NS: Final = int(CAUSE.threshold("slow_call_ns"))
_LOOP_CALLS: Final = int(CAUSE.threshold("loop_calls"))
_LOOP_ROUNDS: Final = int(CAUSE.threshold("loop_rounds"))
_MOSTLY_LOOPED: Final = CAUSE.threshold("mostly_looped")
_FEWEST_CALLS: Final = CAUSE.threshold("composed_calls")
_OF_TORCH: Final = re.compile(
    r"(aten|autograd|torch|c10d|nccl|profiler|prims|inductor|triton)::|\W|Torch-Compiled|.*(Backward\d*|Step|Compiled\w*)$"
)
_PIECES: Final = CAUSE.threshold("pieces")
"""torch's name of a call of compiled code, with its number."""
_LONGEST_MEDIAN_NS: Final = int(CAUSE.threshold("longest_median_ns"))


def in_trace(case: Case) -> Iterator[Replayed]:
    """Each device whose usual kernel is short, absolutely or relative to the host's time for each; loops of such."""
    blind = lacks_a_stage(case)
    graphs: _Graphs | None = None
    for rank in case.ranks:
        found = launching(case, rank)
        if found is None:
            continue
        of_loops = without_loops(case, rank)
        if of_loops is not None and of_loops.cause != CAUSE.id:
            of_loops = None
        short = [
            (device, median)
            for device in rank.analysis.devices
            if device.kind != "cpu" and device.gpu_events
            if (median := median_kernel_ns(rank, device.device)) <= max(_LONGEST_MEDIAN_NS, found.each_ns)
        ]
        for device, median in short:
            graphs = graphs or _Graphs(case)
            every = _as_one_graph(graphs, rank, device, found.work, median, found.each_ns, blind=blind)
            yield of_loops if of_loops is not None and is_most(case, of_loops, every) else every
        if of_loops is not None and not short:
            yield of_loops


class _Graphs:
    """The effect of launching at once, on any launching rank: gaps between device events, and delays before them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        apart = ~_within_a_graph(case)
        self.lag = close_up(case, apart, _GRAPH_GAP_NS)
        self.delay = np.where(apart, _no_latency(case), case.replayed.delay)


def _within_a_graph(case: Case) -> Mask:
    """The device's nodes that one call launched after others: they are in a graph already, and their gaps stay.

    A profiler that follows each kernel of a graph makes some of these gaps itself.
    """
    out = np.zeros(len(case.replayed.start), np.bool_)
    for rank in case.ranks:
        launch = rows_of(rank.trace.device_events["launch"])
        order = np.argsort(rank.trace.device_events["ts_ns"].to_numpy(), kind="stable")
        first = np.zeros(len(launch), np.bool_)
        first[order[np.unique(launch[order], return_index=True)[1]]] = True
        out |= case.nodes(rank, device=(launch >= 0) & ~first)
    return out


def _events_per_step(device: Device) -> float:
    chosen = steady(device.steps)
    return sum(step.gpu_events for step in chosen) / len(chosen) if chosen else device.gpu_events


def _as_one_graph(
    graphs: _Graphs, rank: RankCase, device: Device, work: Mask, median_ns: int, each_ns: float, *, blind: bool
) -> Replayed:
    case = graphs.case
    late = device.ledger.idle_launch + device.ledger.idle_dispatch + device.ledger.idle_python
    steps = max(len(device.steps), 1)
    call_ns, slow = _launch_calls(case, rank, work)
    at_once = replace(case.without(work), lag=graphs.lag)
    idle = work & while_idle(case, rank)
    looped = _is_of_loops(case, rank, idle)
    regions = _compiled_regions(case, rank)
    in_pieces = regions >= _PIECES
    composed = None if looped or in_pieces else _composed(case, rank, idle)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=late // steps,
        evidence=(
            evidence.count("device events", _events_per_step(device), per=case.per),
            evidence.time("median length of one", median_ns),
            evidence.time("what the host takes for one", each_ns),
            evidence.share("device idle because the host was late", late / max(device.window_ns, 1)),
            *((evidence.time("a launch call itself, in the median", call_ns),) if slow else ()),
            *((evidence.count("compiled regions", regions, per=case.per),) if in_pieces else ()),
            *mostly_within(case, rank, idle),
        ),
        removal=at_once,
        floor=Change() if blind else None,
        ceiling=replace(at_once, delay=graphs.delay),
        method="replay: all launches of a step at once, as from a CUDA graph",
        code=code_of(case, idle),
        detail="" if composed is None else f"{composed} launches most of them",
        remedy=_remedy(looped=looped, in_pieces=in_pieces, composed=composed is not None),
        needs_first=("host.sync",) if not looped and "when_waits" in circumstances(case) else (),
        ranks=(rank.rank,),
        uncertainty=0.25,
        confidence=0.9,
        # That the calls themselves are slow is no general symptom: more specific causes do not make them so.
        tier=0 if slow else 2,
        rivals=("host.python", "host.sync", "input.synchronous-loader"),
    )


def _remedy(*, looped: bool, in_pieces: bool, composed: bool) -> Remedy | None:
    named = {"looped": looped, "in_pieces": in_pieces, "composed": composed}
    return next((CAUSE.remedies[name] for name, is_it in named.items() if is_it), None)


def _composed(case: Case, rank: RankCase, idle: Mask) -> str | None:
    """The operator outside of torch's own in which most of the host's work is done while the device idles.

    A library or the job composes it of small ones: a `torch.autograd.Function`, or an operator that it registered.
    """
    table, calls = rank.trace.operators, outer_calls(rank)
    own = calls[matching(table["name"], lambda name: not _OF_TORCH.match(name))[calls]]
    if not len(own):
        return None
    took = table["duration_ns"].to_numpy()[own]
    name = codes(table["name"])[own]
    longest = int(np.argmax(np.bincount(name, weights=took)))
    rows = own[name == longest]
    if len(rows) < _FEWEST_CALLS * max(len(rank.trace.steps), 1):
        return None
    inside = idle & case.host_within_operators(rank, rows.astype(np.int64))
    return (
        str(distinct(table["name"])[longest]) if case.time_of(inside) >= _MOSTLY_LOOPED * case.time_of(idle) else None
    )


def _compiled_regions(case: Case, rank: RankCase) -> float:
    """The calls of compiled code in a step."""
    begin, end = case.window_on(rank)
    found = 0
    for table in (rank.trace.operators, rank.trace.annotations):
        at = table["ts_ns"].to_numpy()
        named = matching(table["name"], lambda name: name.startswith(REGION))
        found = max(found, int(np.count_nonzero(named & (at >= begin) & (at < end))))
    return found / max(case.steps, 1)


def _is_of_loops(case: Case, rank: RankCase, idle: Mask) -> bool:
    """Whether loops that call a few operators over and over take most of the host's work while the device idles."""
    begin, end = loops_of_calls(rank, most_calls=_LOOP_CALLS, least_rounds=_LOOP_ROUNDS)
    if not len(begin):
        return False
    return case.time_of(idle & case.host_within(rank, begin, end)) >= _MOSTLY_LOOPED * max(case.time_of(idle), 1)


def _launch_calls(case: Case, rank: RankCase, work: Mask) -> tuple[int, bool]:
    """The median length of a call that launches, and whether these are slow, and most of the host's work."""
    calls = case.in_window(case.host_state(rank, HostState.LAUNCH))
    launch = rank.host_named(lambda name: is_call(name, "launch"), ("runtime_calls",))
    launching = calls & case.nodes(rank, host=launch)  # others, such as records of events, are always short
    median = int(np.median(case.replayed.duration[launching])) if launching.any() else 0
    return median, median >= _SLOW_CALL_NS and case.time_of(calls) * 2 >= case.time_of(work)


def _no_latency(case: Case) -> NDArray[np.int64]:
    """The delays of nodes without the device's own latency between two events."""
    graph = case.replayed
    small = (graph.kind == NodeKind.DEVICE) & (graph.delay <= LATENCY_NS)
    return np.where(small, np.minimum(graph.delay, 0), graph.delay)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")),))
