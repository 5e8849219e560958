"""Tensors that the CPU computes in a job on a device, on the thread that launches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.host_states import HostState
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.copies import waits_of_copies
from whystall.diagnosis.detectors.episodes import named_times
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.loops import while_idle
from whystall.diagnosis.detectors.on_the_host import carried_out_by_the_host, goes_on_at_the_host
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import codes, distinct

CAUSE: Final = cause_beside(__name__)
_LEAST_NS: Final = CAUSE.threshold("least_ns")
_LAUNCHED_NS: Final = CAUSE.threshold("launched_ns")
_ROUND_TRIP_NS: Final = CAUSE.threshold("round_trip_ns")
_MOST_NAMED: Final = 3
"""Operators that the evidence lists."""
_PICKS: Final = frozenset({"aten::index_select", "aten::index", "aten::gather", "aten::take", "aten::embedding"})
_TRANSFORMS: Final = re.compile(r"^aten::(_fft_|stft|_?upsample_|grid_sampler|im2col|mkldnn_convolution|_slow_conv)")
"""Operators that change inputs, such as sounds and pictures: spectra, resizing, filters."""
_LEAST_TRANSFORMS: Final = CAUSE.threshold("least_transforms")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Long operators without a launch, of the job's own lines: not of loaders, optimizers or rare work."""
    for rank in case.ranks:
        if not rank.on_device:
            continue
        operators = _long(rank)
        if not operators.any():
            continue
        nodes = _of_operators(case, rank, operators) & ~_of_others(case, rank)
        if _is_usual(case, rank, nodes):
            yield _on_the_device(case, rank, nodes)


def in_trace_of_round_trips(case: Case) -> Iterator[Replayed]:
    """Operators of libraries that copy to the host in their midst, and go on there."""
    for rank in case.ranks:
        if not rank.on_device:
            continue
        operators, copies = goes_on_at_the_host(rank, _ROUND_TRIP_NS)
        if not operators.any():
            continue
        work = _of_operators(case, rank, operators) & ~_of_others(case, rank)
        nodes = work | case.nodes(rank, device=copies)
        if _is_usual(case, rank, work):
            waits = waits_of_copies(case, rank, copies)
            yield _without_the_trip(case, rank, work, nodes, waits)


def _is_usual(case: Case, rank: RankCase, nodes: Mask) -> bool:
    return min(case.time_of(nodes), case.usual_ns(rank, nodes)) >= _LEAST_SHARE * case.step_ns


def _without_the_trip(case: Case, rank: RankCase, work: Mask, nodes: Mask, waits: Mask) -> Replayed:
    name, _ = _by_operator(case, rank, work)[0]
    removal = Change(duration=case.without(nodes).duration, removed_edges=waits)
    copied = case.time_of(nodes & ~work)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=case.time_of(nodes),
        evidence=(
            evidence.time(f"{name} itself, on the host", case.time_of(work), case.events_of(work), per=case.per),
            evidence.time("its copies to the host and back", copied, per=case.per),
        ),
        removal=removal,
        floor=case.without(work),
        method="replay: without the copies, the waits for them, and the work on the host",
        detail=f"{name} copies its data to the host and goes on there",
        code=code_of(case, work),
        remedy=CAUSE.remedies["round_trip"],
        ranks=(rank.rank,),
        uncertainty=0.2,
        confidence=0.85,
        rivals=("host.sync", "host.launch-bound", "host.pageable-copy"),
    )


def _long(rank: RankCase) -> Mask:
    out: Mask = carried_out_by_the_host(rank) & (rank.trace.operators["self_ns"].to_numpy() >= _LEAST_NS)
    return out


def _of_operators(case: Case, rank: RankCase, operators: Mask) -> Mask:
    """The nodes of the operators' own time on the training thread, or on those of its backward pass."""
    threads = [-1 if rank.training is None else rank.training, *rank.backward_threads]
    own = np.isin(rank.trace.operators["thread"].to_numpy(), threads)
    return case.own_time_of(rank, operators & own) & case.host_state(rank, HostState.DISPATCH)


def _of_others(case: Case, rank: RankCase) -> Mask:
    """Optimizers, which may be offloaded on purpose, and what other rules cover."""
    rare = named_times(rank, "checkpoint", "evaluation", "logging", "compilation")
    begin, end, _ = rank.optimizer_steps
    return (
        case.host_within(rank, *rare) | case.host_within(rank, begin, end) | case.host_within(rank, *rank.preparations)
    )


def _on_the_device(case: Case, rank: RankCase, nodes: Mask) -> Replayed:
    per_step = case.time_of(nodes)
    left = np.minimum(_LAUNCHED_NS / np.maximum(case.replayed.duration, 1), 1.0)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("operators that the CPU carries out", per_step, case.events_of(nodes), per=case.per),
            evidence.count("of them", count_per_step(case, nodes), per=case.per),
            evidence.text("the costliest", _costliest(case, rank, nodes)),
            evidence.share(
                "of their time in which the device idles",
                case.time_of(nodes & while_idle(case, rank)) / max(per_step, 1),
            ),
        ),
        removal=case.without(nodes, np.where(nodes, left, 1.0)),
        ceiling=case.without(nodes),
        method="replay: the host takes a launch for each of these operators",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.2,
        confidence=0.9,
        remedy=_remedy(case, rank, nodes),
        rivals=("host.launch-bound", "host.python", "host.sync"),
    )


def _remedy(case: Case, rank: RankCase, nodes: Mask) -> Remedy | None:
    """The remedy for picking rows of tables, or for changing inputs, if most of the time goes to it."""
    found = _by_operator(case, rank, nodes)
    whole = sum(ns for _, ns in found)
    if 2 * sum(ns for name, ns in found if name in _PICKS) > whole:
        return CAUSE.remedies["picked_rows"]
    transforms = sum(ns for name, ns in found if _TRANSFORMS.search(name))
    return CAUSE.remedies["inputs"] if transforms >= _LEAST_TRANSFORMS * whole else None


def _costliest(case: Case, rank: RankCase, nodes: Mask) -> str:
    """The operators that take most of the time, with their shares."""
    found = _by_operator(case, rank, nodes)
    whole = max(sum(ns for _, ns in found), 1)
    return ", ".join(f"{name} {100 * ns / whole:.0f} %" for name, ns in found[:_MOST_NAMED])


def _by_operator(case: Case, rank: RankCase, nodes: Mask) -> list[tuple[str, int]]:
    """The operators whose time some nodes are, the costliest first, with their time."""
    graph, names = case.replayed, rank.trace.operators["name"]
    chosen = np.flatnonzero(nodes)
    kinds = codes(names)[graph.event[chosen] - rank.offsets["operators"][0]]
    time = np.bincount(kinds, weights=graph.duration[chosen])
    order = np.argsort(-time, kind="stable")
    return [(distinct(names)[one], int(time[one])) for one in order.tolist() if time[one] > 0]


_NEEDS: Final = ("trace", "device_events", "operators")
RULE = Rule(CAUSE, (Finder(in_trace, _NEEDS), Finder(in_trace_of_round_trips, _NEEDS)))
