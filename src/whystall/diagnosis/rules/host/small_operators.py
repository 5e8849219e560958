"""A job without an accelerator that spends its time in calling operators, not in their work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState
from whystall.analysis.hosts import backward_threads
from whystall.analysis.intervals import within
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Code, Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.circumstances import is_given_one_sample
from whystall.diagnosis.detectors.call_kinds import kind_of_calls
from whystall.diagnosis.detectors.one_by_one import one_by_one
from whystall.diagnosis.detectors.renormed_tables import renormed_tables
from whystall.diagnosis.detectors.samples import code_of_lines, lines_where
from whystall.diagnosis.detectors.stretches import LONG_NS, soft_nodes, soft_stretch_ns
from whystall.diagnosis.detectors.tables import Tables, single_tables
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask, Times
from whystall.run_folder.samples import CALLED
from whystall.trace.columns import codes, matching

CAUSE: Final = cause_beside(__name__)
_SMALL_NS: Final = CAUSE.threshold("small_ns")
_LEAST_SMALL: Final = CAUSE.threshold("least_small")
_LEAST_REPEATS: Final = CAUSE.threshold("least_repeats")
_LEAST_LOOPED: Final = CAUSE.threshold("least_looped")
_WAKING_NS: Final = CAUSE.threshold("waking_ns")
_MOSTLY_CALLED: Final = CAUSE.threshold("mostly_called")
_FUNCTION_NS: Final = CAUSE.threshold("function_ns")
_ONE_CALL_NS: Final = CAUSE.threshold("one_call_ns")
_FLOPS_PER_S: Final = CAUSE.threshold("flops_per_thread")
_BYTES_PER_S: Final = CAUSE.threshold("bytes_per_s")
# Share of the calls' cost that a remedy leaves: at least, as expected, at most.
_LEFT: Final = (0.0, 0.3, 0.6)
# The same for tables' calls, and for the other operators of each table.
_LEFT_OF_TABLES: Final = ((0.0, 0.0), (0.2, 0.1), (0.5, 0.5))
_OF_EACH: Final = 4
# A batch is moved and reshaped where an item was not.
_LEFT_OF_BATCH: Final = 0.1
# The rates are those of a usual core: a core may be this many times faster, or slower.
_FASTER: Final = 3.0
# Operators that wake threads even for little work.
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
# Functions of single elements that torch cuts into small parts for its threads, since each takes a while.
_FUNCTIONS: Final = re.compile(r"^aten::(gelu|silu|mish|softplus|elu|sigmoid|tanh|exp|log|erf|sin|cos)(_backward)?_?$")
_BYTES: Final = 4
# Size of a core's second-level cache, on most of today's.
_CACHED_BYTES: Final = 1 << 20
# A module of torch that one of the user's calls.
_MODULES: Final = "torch.nn.modules."
# Parts of a step in which the user's own lines call operators (a closure's are the optimizer's by the clock).
_CALLERS: Final = frozenset({"forward", "optimizer", "other"})


def in_trace_of_a_cpu(case: Case) -> Iterator[Replayed]:
    """Small operators and the pauses between them, if they repeatedly fill the step, or a loop within it."""
    for rank in case.ranks:
        small = _small(case, rank) & ~_in_optimizer(rank) & ~_in_one_call(rank)
        if not small.any():
            continue
        nodes = _nodes(case, rank, small)
        taken = case.time_of(nodes)
        if taken >= _LEAST_SMALL * case.step_ns and _repeats(rank, small, case):
            yield _in_fewer_calls(case, rank, nodes, small, taken)
            continue
        looped, begin, end = _in_loops(rank, small)
        if len(begin):
            nodes = _nodes(case, rank, looped) & case.host_within(rank, begin, end)
            yield _in_fewer_calls(case, rank, nodes, looped, case.time_of(nodes))


def in_trace_item_by_item(case: Case) -> Iterator[Replayed]:
    """A model that is called with one item at a time, however long its operators take: a batch is one call."""
    for rank in case.ranks:
        found = one_by_one(rank, _alike(rank))
        if found is None:
            continue
        nodes = _nodes(case, rank, found.operators) & case.host_within(rank, found.begin, found.end)
        nodes |= case.work_of(rank, found.back)
        taken = max(case.time_of(nodes), 1)
        chosen = (found.operators | found.back) & _in_window(case, rank)
        each = _each_needs_ns(rank, 1.0)
        dense = rank.workings.work.dense > 0  # threads share products of a batch
        needed = float((each / np.where(dense, max(case.facts.threads or 1, 1), 1))[chosen].sum())
        needed /= max(case.steps, 1)

        def left(of_calls: float, slower: float, taken: int = taken, needed: float = needed) -> float:
            arithmetic = min(needed * slower, taken)
            return (arithmetic + of_calls * (taken - arithmetic)) / taken

        one_call = 1 / found.items
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=taken,
            evidence=(
                evidence.count("items that are computed one by one, and joined", found.items),
                evidence.time("in their operators and between them", taken, case.events_of(nodes), per=case.per),
                evidence.time("what their arithmetic takes on a usual core", round(needed), per=case.per),
            ),
            removal=case.without(nodes, left(one_call + _LEFT_OF_BATCH, 1.0)),
            floor=case.without(nodes, left(_LEFT[2], _FASTER)),
            ceiling=case.without(nodes, left(one_call, 1 / _FASTER)),
            method="replay: one call for all items, their arithmetic at the rates of a usual core",
            code=_places(case, rank) if case.sampled(rank) is not None else code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.8,
            detail=f"{found.items} items are computed one by one",
            tier=1,
            rivals=("host.python", "compute.unfused-attention"),
        )


def in_trace_of_single_samples(case: Case) -> Iterator[Replayed]:
    """A model that answers one sample after another: a batch pays the cost of calling once.

    That is Python between operators, and small operators beyond their arithmetic. The arithmetic stays.
    """
    for rank in case.ranks:
        small = _small(case, rank)
        if not is_given_one_sample(rank) or not small.any():
            continue
        idle = case.host_state(rank, HostState.INPUT)
        nodes = (case.work_of(rank, small) | soft_nodes(case, rank)) & ~idle
        taken = case.time_of(nodes)
        if taken >= _LEAST_SMALL * case.step_ns:
            yield _in_fewer_calls(case, rank, nodes, small, taken)


def in_trace_of_tables(case: Case) -> Iterator[Replayed]:
    """Tables of embeddings that are looked up, learned from and updated one by one: one table is one of each."""
    for rank in case.ranks:
        found = single_tables(rank)
        if found is None:
            continue
        begin, end, _ = rank.optimizer_steps
        calls = case.host_within(rank, found.begin, found.end) | case.work_of(rank, found.back)
        updates = case.work_of(rank, found.of_parameters)
        if _goes_through_parameters(rank, found):
            updates |= case.host_within(rank, begin, end)
        taken = case.time_of(calls | updates)

        least, expected, most = (_left_of(found, calls, updates, *left) for left in _LEFT_OF_TABLES)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=taken,
            evidence=(
                evidence.count("small tables that are looked up one by one", found.count),
                evidence.time(
                    "in their lookups, and in going back through them",
                    case.time_of(calls),
                    case.events_of(calls),
                    per=case.per,
                ),
                evidence.time("in what there is for each parameter", case.time_of(updates), per=case.per),
            ),
            removal=case.without(calls | updates, expected),
            floor=case.without(calls | updates, most),
            ceiling=case.without(calls | updates, least),
            method="replay: one table of all their rows, with fewer parameters to update",
            code=_places(case, rank) if case.sampled(rank) is not None else code_of(case, calls),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.8,
            detail=f"{found.count} small tables are looked up one by one",
            remedy=CAUSE.remedies["tables"],
            rivals=("compute.unfused-optimizer",),
        )


def in_trace_of_renormed(case: Case) -> Iterator[Replayed]:
    """Rows of a table that are brought to their norm one by one."""
    for rank in case.ranks:
        found = renormed_tables(rank)
        if found is not None:
            yield found.candidate(case, rank, CAUSE)


def _left_of(found: Tables, calls: Mask, updates: Mask, of_calls: float, of_updates: float) -> NDArray[np.float64]:
    """Remaining share of each node, where one table takes at least the time of one of them."""
    one = 1 / found.count
    left = np.where(calls, max(of_calls, one), 1.0)
    return np.where(updates, 1 - found.share * (1 - max(of_updates, one)), left)


def _goes_through_parameters(rank: RankCase, found: Tables) -> bool:
    """Whether the optimizer calls some operators for each parameter."""
    begin, end, _ = rank.optimizer_steps
    inside = within(rank.trace.operators["ts_ns"].to_numpy(), begin, end)
    return bool(np.count_nonzero(inside) >= _OF_EACH * found.count * max(len(begin), 1)) if len(begin) else False


def _in_fewer_calls(case: Case, rank: RankCase, nodes: Mask, small: Mask, taken: int) -> Replayed:
    steps = max(case.steps, 1)
    chosen = small & _in_window(case, rank)
    needed = _needed_ns(rank, chosen, 1.0) / steps
    count = int(np.count_nonzero(chosen)) / steps

    def left(of_calls: float, slower: float) -> float:
        arithmetic = _needed_ns(rank, chosen, slower) / steps
        return min((arithmetic + of_calls * max(taken - arithmetic, 0)) / max(taken, 1), 1.0)

    least, expected, most = left(_LEFT[0], 1 / _FASTER), left(_LEFT[1], 1.0), left(_LEFT[2], _FASTER)
    run = case.sampled(rank)
    kind = kind_of_calls(rank, chosen, steps)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=taken,
        evidence=(
            evidence.count("small operators", count, per=case.per),
            evidence.time("in them and between them", taken, case.events_of(nodes), per=case.per),
            evidence.time("what their arithmetic takes on a usual core", needed, per=case.per),
        ),
        removal=case.without(nodes, expected),
        floor=case.without(nodes, most),
        ceiling=case.without(nodes, least),
        method="replay: their arithmetic at the rates of a usual core, and a part of what calling them costs",
        code=_places(case, rank) if run is not None else code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.3,
        confidence=0.8,
        tier=1,
        remedy=None if kind is None else CAUSE.remedies[kind],
        rivals=("host.python", "compute.unfused-optimizer", "input.synchronous-loader"),
    )


def _small(case: Case, rank: RankCase) -> Mask:
    """Which calls of operators cost more than they compute.

    Short calls, and recurring calls that are longer only because they wake threads.
    """
    usual = _usual_own_ns(rank)
    products = matching(rank.trace.operators["name"], _PRODUCTS.__contains__)
    needed = _each_needs_ns(rank, 1.0) / np.where(products, max(case.facts.threads or 1, 1), 1)
    waking = products | _transcendental(rank) | _in_caches(rank)
    waking &= (usual >= _SMALL_NS) & (usual < _WAKING_NS) & (_MOSTLY_CALLED * needed < usual)
    if waking.any():
        alike = _alike(rank)
        often = np.bincount(alike[_in_window(case, rank)], minlength=int(alike.max()) + 1)[alike]
        waking &= often >= _LEAST_REPEATS * max(case.steps, 1)
    small: Mask = (usual < _SMALL_NS) | waking
    return small


def _in_caches(rank: RankCase) -> Mask:
    """Calls that are known to move so little that it stays in a core's own caches."""
    moved = rank.workings.work.moved
    small: Mask = (moved > 0) & (moved <= _CACHED_BYTES)
    return small


def _usual_own_ns(rank: RankCase) -> NDArray[np.int64]:
    """Per operator call the median own time of calls like it (name and shapes): one may be interrupted."""
    own = rank.trace.operators["self_ns"].to_numpy()
    group = _alike(rank)
    order = np.lexsort((own, group))
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    length = np.diff(first, append=len(order))
    median: NDArray[np.int64] = own[order[first + length // 2]][group]
    return median


def _alike(rank: RankCase) -> NDArray[np.intp]:
    """Per operator call a number that calls of its name and shapes have in common."""
    names = codes(rank.trace.operators["name"]).astype(np.int64)
    calls = rank.workings.work.call_of.astype(np.int64) + 1
    alike: NDArray[np.intp] = np.unique(names * (int(calls.max(initial=0)) + 1) + calls, return_inverse=True)[1]
    return alike


def _in_optimizer(rank: RankCase) -> Mask:
    begin, end, _ = rank.optimizer_steps
    at = rank.trace.operators["ts_ns"].to_numpy()
    if not len(begin):
        return np.zeros(len(at), np.bool_)
    place = np.searchsorted(begin, at, side="right") - 1
    inside: Mask = (place >= 0) & (at < end[np.maximum(place, 0)])
    return inside


def _in_one_call(rank: RankCase) -> Mask:
    """Operators that a long one of torch's calls itself: a convolution in groups, a recurrent network.

    Those of its backward pass among them. They are no loop of the user's, and he calls nothing less often.
    """
    table, tree = rank.trace.operators, rank.workings.tree
    long = matching(table["name"], lambda name: name.startswith("aten::"))
    inside = tree.below(long & (table["duration_ns"].to_numpy() >= _ONE_CALL_NS))
    number = table["sequence"].fill_null(-1).to_numpy()
    of_it = np.unique(number[inside & ~rank.backward & (number >= 0)])
    backward = rank.backward & np.isin(number, of_it)
    return inside | backward | tree.below(backward)


def _in_loops(rank: RankCase, small: Mask) -> tuple[Mask, Times, Times]:
    """Small operators of loops over single elements, and begin and end of these loops.

    A loop is a run of small operators, without large ones in between, in which the same call repeats: layers and
    micro-batches repeat as well, with large ones between.
    """
    table = rank.trace.operators
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    large = ~small & (table["self_ns"].to_numpy() >= _SMALL_NS)
    order = np.lexsort((at, thread))
    run = np.empty(len(order), np.int64)
    run[order] = np.cumsum(large[order] | (np.diff(thread[order], prepend=thread[order[0]]) != 0))
    rows = np.flatnonzero(small)
    alike = _alike(rank)[rows]
    _, place, count = np.unique(np.stack([run[rows], alike]), axis=1, return_inverse=True, return_counts=True)
    runs = np.unique(run[rows[count[place.ravel()] >= _LEAST_LOOPED]])
    looped: Mask = small & np.isin(run, runs)
    chosen = np.flatnonzero(looped)
    first = np.searchsorted(runs, run[chosen])
    begin = np.full(len(runs), np.iinfo(np.int64).max)
    end = np.zeros(len(runs), np.int64)
    np.minimum.at(begin, first, at[chosen])
    np.maximum.at(end, first, at[chosen] + table["duration_ns"].to_numpy()[chosen])
    return looped, begin, end


def _in_window(case: Case, rank: RankCase) -> Mask:
    begin, end = case.window_on(rank)
    at = rank.trace.operators["ts_ns"].to_numpy()
    inside: Mask = (at >= begin) & (at < end)
    return inside


def _repeats(rank: RankCase, small: Mask, case: Case) -> bool:
    """Whether small operators recur in a step; without a backward pass any number counts."""
    if not backward_threads(rank.trace) and not rank.trains:
        return True
    chosen = small & _in_window(case, rank)
    distinct = len(np.unique(_alike(rank)[chosen]))
    return int(np.count_nonzero(chosen)) / max(case.steps, 1) >= _LEAST_REPEATS * distinct


def _nodes(case: Case, rank: RankCase, small: Mask) -> Mask:
    """The nodes of small operators, and of short pauses in Python."""
    soft = soft_nodes(case, rank)
    pauses = soft & (soft_stretch_ns(case, rank) < LONG_NS)
    begin, end, _ = rank.optimizer_steps
    idle = case.host_state(rank, HostState.INPUT)
    chosen: Mask = (case.work_of(rank, small) | pauses) & ~idle
    return chosen & ~case.host_within(rank, begin, end) if len(begin) else chosen


def _needed_ns(rank: RankCase, chosen: Mask, slower: float) -> float:
    """The time of operators' arithmetic on a core that is ``slower`` times slower than a usual one.

    For each at most its own time beyond the cost of a call here, which operators without work (views) show.
    """
    needed = _each_needs_ns(rank, slower)[chosen]
    own = rank.trace.operators["self_ns"].to_numpy()[chosen]
    views = own[needed == 0]
    call = float(np.median(views)) if len(views) else 0.0
    return float(np.minimum(needed, np.maximum(own - call, 0.0)).sum())


def _each_needs_ns(rank: RankCase, slower: float) -> NDArray[np.float64]:
    work = rank.workings.work
    flops = work.causal.astype(np.float64) + work.elementwise
    needed = 1e9 * np.maximum(flops / _FLOPS_PER_S, work.moved / _BYTES_PER_S)
    elements = work.moved / _BYTES / 2  # each is read and written at the least
    return slower * np.maximum(needed, np.where(_transcendental(rank), elements * _FUNCTION_NS, 0.0))


def _transcendental(rank: RankCase) -> Mask:
    return matching(rank.trace.operators["name"], lambda name: bool(_FUNCTIONS.match(name)))


def _places(case: Case, rank: RankCase) -> Code:
    run = case.sampled(rank)
    if run is None:
        return Code()
    called = lines_where(run, lambda line: line.part in _CALLERS and line.leaf.startswith((CALLED, _MODULES)))
    return code_of_lines(called or lines_where(run, lambda line: line.part == "forward"))


_OF_SHAPES: Final = (
    in_trace_of_a_cpu,
    in_trace_item_by_item,
    in_trace_of_single_samples,
    in_trace_of_tables,
)
_NEEDS: Final = ("trace", "no_device", "operators", "shapes")
RULE = Rule(
    CAUSE,
    (
        *(Finder(find, _NEEDS) for find in _OF_SHAPES),
        Finder(in_trace_of_renormed, ("trace", "no_device", "operators")),
    ),
)
