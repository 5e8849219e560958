"""Stretches of a job's code that launch the same few small operators over and over: a loop over elements or positions.

A model's layers repeat as well, but with products, convolutions or long kernels among their operators. An optimizer's
loop over parameters, and a loop that works in place on one tensor after the other, are causes of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of
from whystall.analysis.intervals import within
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import count_per_step, waits_before
from whystall.diagnosis.detectors.kernels import close_up, durations, prompt
from whystall.diagnosis.detectors.loops import while_idle
from whystall.diagnosis.detectors.outer_calls import outer_calls, places_among
from whystall.diagnosis.detectors.stretches import work_within
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask, Times
from whystall.trace.columns import codes, distinct, matching
from whystall.trace.link import rows_of
from whystall.vocabulary.autograd import EVALUATES

_SIMPLE: Final = frozenset(
    {
        *("elementwise", "activation", "reduction", "copy", "set", "random", "layout", "gather-scatter"),
        *("sort-scan-select", "softmax"),
    }
)
_IN_PLACE: Final = "_"
_OF_TORCH: Final = re.compile(r"^aten::").match
_MOST_NAMES: Final = 5


class Least(NamedTuple):
    """The fewest calls of a loop, the calls of each of its operators on average, and its longest kernel.

    ``in_place`` is the share of calls in place from which it is another kind of loop.
    """

    calls: int
    turns: float
    longest_ns: float
    in_place: float


CAUSE: Final = cause_beside("whystall.diagnosis.rules.host.launch_bound")
_LEAST: Final = Least(
    calls=int(CAUSE.threshold("loop_launches")),
    turns=CAUSE.threshold("loop_turns"),
    longest_ns=CAUSE.threshold("loop_longest_ns"),
    in_place=CAUSE.threshold("loop_in_place"),
)
_MOSTLY: Final = CAUSE.threshold("mostly_looped")
_CALLS_LEFT: Final = CAUSE.threshold("loop_left")
_SHARE: Final = CAUSE.threshold("loop_share")
_WAITS: Final = CAUSE.threshold("loop_waits")
_NEARLY_ALL: Final = CAUSE.threshold("loop_names")
_SHORTEST: Final = CAUSE.threshold("shortest")
_SHORTEST_NS: Final = CAUSE.threshold("shortest_ns")


@dataclass(frozen=True, slots=True)
class LoopsOverElements:
    """Loops of a rank: their begins and ends on the training thread, and the backward operators of what they call.

    ``launched`` are the device events of both, ``calls`` counts the calls that launch something, ``kinds`` the
    operators that the loops have, summed over the loops; ``names`` are the most frequent ones.
    """

    begin: Times
    end: Times
    backward: Mask
    launched: Mask
    calls: int
    kinds: int
    names: tuple[str, ...]


def loops_over_elements(rank: RankCase, least: Least) -> LoopsOverElements | None:
    """The loops on the training thread, outside of optimizers and of the backward pass; ``None`` without any."""
    table = rank.trace.operators
    calls = outer_calls(rank)
    if not len(calls):
        return None
    place = places_among(rank, calls)
    operator = rows_of(rank.trace.device_events["operator"])
    owner = np.where(operator >= 0, place[np.maximum(operator, 0)], -1)
    launches = np.bincount(owner[owner >= 0], minlength=len(calls))
    at = table["ts_ns"].to_numpy()[calls]
    begin, end, _ = rank.optimizer_steps
    # An operator of another library or compiled code may do anything.
    other = rank.backward[calls] | within(at, begin, end) | ~matching(table["name"], _OF_TORCH)[calls]
    other[owner[(owner >= 0) & ~_is_small(rank, least.longest_ns)]] = True
    # Views launch nothing, and neither break a loop nor count.
    own = np.flatnonzero(other | (launches > 0))
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), at[own], side="right")
    parts = np.split(own, np.flatnonzero(other[own[1:]] | other[own[:-1]] | (np.diff(step) != 0)) + 1)
    name = codes(table["name"])[calls]
    names = distinct(table["name"])
    loops: list[tuple[NDArray[np.intp], Counter[str]]] = []
    for part in parts:
        if len(part) >= least.calls and not other[part[0]]:
            counts = Counter(str(names[one]) for one in name[part].tolist())
            kinds = _kinds(counts)
            changes = sum(count for one, count in counts.items() if one.endswith(_IN_PLACE))
            if len(part) >= least.turns * len(kinds) and changes < least.in_place * len(part):
                loops.append((part, kinds))
    if not loops:
        return None
    return _found(rank, calls, place, loops)


def _is_small(rank: RankCase, longest_ns: float) -> Mask:
    """Which device events are short, and of kernels that only go through elements."""
    classified = rank.workings.classified
    simple = np.array([family in _SIMPLE for family in classified.families], np.bool_)[classified.family_of]
    small: Mask = simple & (rank.trace.device_events["duration_ns"].to_numpy() <= longest_ns)
    return small


def _kinds(counts: Counter[str]) -> Counter[str]:
    """The operators that make nearly all of the calls."""
    out: Counter[str] = Counter()
    for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if out.total() >= _NEARLY_ALL * counts.total():
            break
        out[name] = count
    return out


def _found(
    rank: RankCase,
    calls: NDArray[np.intp],
    place: NDArray[np.int64],
    loops: list[tuple[NDArray[np.intp], Counter[str]]],
) -> LoopsOverElements:
    table, tree = rank.trace.operators, rank.workings.tree
    start = table["ts_ns"].to_numpy()
    stop = start + table["duration_ns"].to_numpy()
    begin = np.array([start[calls[part[0]]] for part, _ in loops], np.int64)
    end = np.array([stop[calls[part[-1]]] for part, _ in loops], np.int64)
    inside = np.zeros(len(calls) + 1, np.bool_)
    inside[np.concatenate([np.arange(part[0], part[-1] + 1) for part, _ in loops])] = True
    of_loops = inside[place] & (place >= 0)
    forward = forward_operator_of(rank.trace, tree)
    backward = (forward >= 0) & of_loops[np.maximum(forward, 0)]
    around = tree.parent[backward]
    evaluates = matching(table["name"], lambda name: name.startswith(EVALUATES))
    backward[around[(around >= 0) & evaluates[np.maximum(around, 0)]]] = True
    backward |= tree.below(backward)
    counts: Counter[str] = sum((kinds for _, kinds in loops), Counter())
    return LoopsOverElements(
        begin=begin,
        end=end,
        backward=backward,
        launched=rank.launched_by(of_loops | backward),
        calls=sum(len(part) for part, _ in loops),
        kinds=sum(len(kinds) for _, kinds in loops),
        names=tuple(sorted(counts, key=lambda one: (-counts[one], one))),
    )


def without_loops(case: Case, rank: RankCase) -> Replayed | None:
    """A rank's loops as a cause, with each operator called a few times; ``None`` without such loops.

    Loops that wait for the device in many of their turns are ``host.sync``, others ``host.launch-bound``.
    """
    key = ("loops_over_elements", rank.rank)
    if key not in case.kept:
        found = loops_over_elements(rank, _LEAST) if rank.on_device else None
        late = found is not None and _is_late(case, rank, found)
        case.kept[key] = _candidate(case, rank, found) if found is not None and late else None
    kept: Replayed | None = case.kept[key]
    return kept


def _is_late(case: Case, rank: RankCase, found: LoopsOverElements) -> bool:
    """Whether the device idles during most of the host's work in the loops: else it is busy for another reason."""
    host = _host_of(case, rank, found)
    return case.time_of(host & while_idle(case, rank)) >= _MOSTLY * case.time_of(host)


def is_most(case: Case, part: Replayed, every: Replayed) -> bool:
    """Whether a part of a loss saves nearly what all of it does."""
    whole = case.length_ns()
    return whole - case.length_ns(part.removal) >= _SHARE * (whole - case.length_ns(every.removal))


def _candidate(case: Case, rank: RankCase, found: LoopsOverElements) -> Replayed:
    nodes, host = case.nodes(rank, device=found.launched), _host_of(case, rank, found)
    change = _at_once(case, rank, found, min(_CALLS_LEFT * found.kinds / found.calls, 1.0))
    kernels, steps = case.replayed.duration, max(len(rank.trace.steps), 1)
    waiting = np.zeros(len(nodes), np.bool_)
    waiting[case.replayed.target[np.asarray(change.removed_edges, np.bool_)]] = True
    waits, launched = count_per_step(case, waiting), count_per_step(case, nodes)
    read = waits >= _WAITS * launched
    return Replayed(
        cause="host.sync" if read else CAUSE.id,
        attributed_ns=case.time_of(host),
        evidence=(
            evidence.count("calls in loops over elements that launch something", found.calls / steps, per=case.per),
            evidence.text("over and over", ", ".join(found.names[:_MOST_NAMES])),
            evidence.time("the host's time in them and their backward pass", case.time_of(host), per=case.per),
            evidence.count("kernels", launched, case.events_of(nodes), per=case.per),
            evidence.time("their device time", case.time_of(nodes), per=case.per),
            *((evidence.count("waits of the host in them", waits, per=case.per),) if waits else ()),
        ),
        removal=change,
        floor=replace(change, duration=np.where(nodes, kernels, np.asarray(change.duration))),
        ceiling=replace(change, duration=np.where(nodes | host, 0, kernels)),
        method="replay: each operator of the loops called a few times for all turns",
        code=code_of(case, host),
        detail="a loop in Python calls the same few operators over and over",
        remedy=CAUSE.remedies["over_elements"],
        ranks=(rank.rank,),
        uncertainty=0.2,
        confidence=0.85,
        rivals=("host.python", "host.launch-bound" if read else "host.sync", "compute.fusible"),
    )


def _host_of(case: Case, rank: RankCase, found: LoopsOverElements) -> Mask:
    """The host nodes of the loops and of their backward pass."""
    own = work_within(case, rank, found.begin, found.end)
    nodes: Mask = own | case.host_within_operators(rank, found.backward)
    return nodes


def _at_once(case: Case, rank: RankCase, found: LoopsOverElements, left: float) -> Change:
    """The change to a few calls for all turns: the host keeps a share of its time, and waits in between go.

    Kernels keep what they take beyond the shortest ones of the loops.
    """
    graph, took = case.replayed, durations(rank)
    nodes, host = case.nodes(rank, device=found.launched), _host_of(case, rank, found)
    kernels = found.launched & matching(rank.trace.device_events["kind"], "kernel".__eq__)
    fixed = min(float(np.quantile(took[kernels], _SHORTEST)), _SHORTEST_NS) if kernels.any() else 0.0
    own = case.device_values(rank, np.maximum(took - fixed, 0) + fixed * left, 0.0)
    duration = np.where(nodes, np.minimum(own, graph.duration), graph.duration.astype(np.float64))
    duration[host] *= left
    return Change(
        duration=duration.astype(np.int64),
        lag=close_up(case, nodes, 0),
        delay=prompt(case, nodes),
        removed_edges=waits_before(case, host),
    )
