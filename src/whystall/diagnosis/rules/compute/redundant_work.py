"""Work that is done again, or for nothing: forward work, backward work, and all of a sequence for each new place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.cosines import cosines
from whystall.diagnosis.detectors.diagonals import diagonals
from whystall.diagnosis.detectors.discarded import discarded_backward
from whystall.diagnosis.detectors.einsum_order import einsum_order
from whystall.diagnosis.detectors.factored_steps import factored_steps
from whystall.diagnosis.detectors.forward_again import repeated_operators, times_again
from whystall.diagnosis.detectors.frees import between, given_back
from whystall.diagnosis.detectors.kernels import BANDWIDTH_REACHED, durations
from whystall.diagnosis.detectors.low_rank import low_rank
from whystall.diagnosis.detectors.narrowed import narrowed_products
from whystall.diagnosis.detectors.passes_again import AGAIN, goes_through_again, summed_at_the_end
from whystall.diagnosis.detectors.picked_rows import picked_rows
from whystall.diagnosis.detectors.prefixes import LongerPass, Products, longer_passes, operators_within, products
from whystall.diagnosis.detectors.room import peak_bytes, room_bytes
from whystall.diagnosis.detectors.sliced_gradients import sliced_gradients
from whystall.diagnosis.detectors.sorted_whole import sorted_whole
from whystall.diagnosis.detectors.wasted_work import WastedWork, wasted_calls, wasted_work
from whystall.diagnosis.detectors.watched_work import (
    given_again,
    in_rows_that_are_alike,
    that_a_mask_drops,
    that_is_read_in_part,
    that_nothing_reads,
)
from whystall.diagnosis.finding import Evidence, Per, Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rewrites import REWRITES
from whystall.diagnosis.rewrites.price import BYTES_PER_S, CALL_NS, price_on
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import judged
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import first_elements

CAUSE: Final = cause_beside(__name__)
_REMEDIES: Final = CAUSE.remedies
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_NESTED: Final = CAUSE.threshold("nested")
_CACHED_BYTES: Final = CAUSE.threshold("cached_bytes")
_FASTER_CACHED: Final = CAUSE.threshold("faster_cached")
_OF_FEW_STEPS: Final = CAUSE.threshold("of_few_steps")
# Bytes of a weight; fewer in half precision.
_BYTES: Final = 4
_LEAST_THAT_FITS: Final = CAUSE.threshold("least_that_fits")
# Time of calls and weights for one token, relative to the expected one: the slowest, the fastest.
_TIMES: Final = (CAUSE.threshold("slowest"), CAUSE.threshold("fastest"))
_TIMES_ON_DEVICE: Final = (CAUSE.threshold("slowest_on_device"), CAUSE.threshold("fastest_on_device"))
_HALF: Final = re.compile(r'^\["(c10::)?(BFloat16|Half)')
_IN_WATCHED: Final = (
    *(given_again, in_rows_that_are_alike, that_a_mask_drops, that_is_read_in_part, that_nothing_reads),
)
_FORMS: Final = (
    *(sorted_whole, diagonals, picked_rows),
    *(einsum_order, factored_steps, cosines, low_rank, sliced_gradients),
)


def in_trace(case: Case) -> Iterator[Replayed | Standing]:
    """All kinds: by autograd's numbers of operators to differentiate, and by the gradients that it adds."""
    for rank in case.ranks:
        again, unused = repeated_operators(rank)
        times = times_again(rank) if again.any() else 0.0
        for left, what, remedy, held in (
            (
                np.where(again, 0.0, 1.0),
                "forward work done again in the backward pass",
                _REMEDIES["nested"] if times >= _NESTED else _recomputed(case),
                _held_instead(case, rank, again),
            ),
            (
                np.where(unused, 0.0, 1.0),
                "forward work that no backward pass uses",
                _REMEDIES["not_differentiated"],
                0,
            ),
            _without_discarded(rank),
            (summed_at_the_end(rank), AGAIN, _REMEDIES["summed"], 0),
        ):
            rows = left < 1
            if not rows.any():
                continue
            nodes = case.work_of(rank, rows)
            kept = np.where(case.host_within_operators(rank, left == 0), 0.0, case.operator_values(rank, left, 1.0))
            if not rank.on_device:  # their callers are gone as well: hooks, and the states of random numbers
                pauses = between(case, rank, left == 0)
                nodes, kept = nodes | pauses, np.where(pauses, 0.0, kept)
            per_step = case.time_of(nodes & (kept == 0)) + case.time_of(nodes & (kept > 0)) // 2
            if min(per_step, case.usual_ns(rank, nodes)) >= _LEAST_SHARE * case.step_ns:
                fits = _fits(case, rank, held) if held and times < _NESTED else 1.0
                if fits < _LEAST_THAT_FITS:
                    yield _needed(case, rank, per_step, held)
                    continue
                kept = 1 - (1 - kept) * fits
                yield Replayed(
                    cause=CAUSE.id,
                    attributed_ns=per_step,
                    evidence=(
                        evidence.time(what, per_step, case.events_of(nodes), per=case.per),
                        *(_of_checkpointing(times, held, case.per) if held else ()),
                    ),
                    removal=case.without(nodes | (kept < 1), kept),
                    method="replay: without it",
                    code=code_of(case, nodes),
                    ranks=(rank.rank,),
                    uncertainty=0.15,
                    confidence=0.85,
                    detail=what,
                    remedy=remedy,
                    rivals=("host.launch-bound",),
                )


def in_trace_of_decoding(case: Case) -> Iterator[Replayed]:
    """Passes over a sequence that grew by one token: one token's share of each operator is left."""
    for rank in case.ranks:
        found = products(rank)
        passes = longer_passes(rank, found)
        if not passes:
            continue
        inside, places = operators_within(rank, passes)
        nodes = case.work_of(rank, inside)
        weights = _with_weights(rank, found, passes)
        slowest, fastest = _TIMES_ON_DEVICE if rank.on_device else _TIMES
        left = _left(case, rank, places, weights, 1.0)
        saved = int((case.replayed.duration * (1 - left))[case.in_window(nodes)].sum()) // max(case.steps, 1)
        if saved < _LEAST_SHARE * case.step_ns:
            continue
        begin, end = case.window_on(rank)
        count = sum(begin <= one.begin_ns < end for one in passes) / max(case.steps, 1)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=saved,
            evidence=(
                evidence.count("passes over a sequence one place longer than before", count, per=case.per),
                evidence.count("places in the longest of them", max(one.places for one in passes)),
                evidence.time("work on places that were computed before", saved, case.events_of(nodes), per=case.per),
            ),
            removal=case.without(nodes, left),
            floor=case.without(nodes, _left(case, rank, places, weights, slowest)),
            ceiling=case.without(nodes, _left(case, rank, places, weights, fastest)),
            method="replay: one place of each sequence, at what calling an operator and reading its weights takes",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.9 if any(one.appended for one in passes) else 0.7,
            detail="all of a sequence for each place appended to it",
            remedy=_REMEDIES["remembered"],
            rivals=("host.small-operators",),
        )


def in_trace_of_heads(case: Case) -> Iterator[Replayed]:
    """Products that make rows for all places, where few of them are read."""
    for rank in case.ranks:
        found = narrowed_products(rank, case.facts.of_rank(rank.rank).labels)
        if found is None:
            continue
        left = case.operator_values(rank, found.left, 1.0)
        nodes = case.work_of(rank, found.left < 1)
        saved = int((case.replayed.duration * (1 - left))[case.in_window(nodes)].sum()) // max(case.steps, 1)
        if saved < _LEAST_SHARE * case.step_ns:
            continue
        freed = given_back(case, rank, found.left < 1)  # large outputs go back to the system, which takes a while
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=saved,
            evidence=(
                evidence.count("rows that a product makes", found.rows),
                evidence.share(
                    "of them have a label that counts" if found.by_labels else "of them are read", found.read
                ),
                evidence.time("work on rows that nothing reads", saved, case.events_of(nodes), per=case.per),
            ),
            removal=case.without(nodes | freed, np.where(freed, found.read, left)),
            floor=case.without(nodes, left),
            method="replay: the rows that are read instead of all",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.15,
            confidence=0.85 if found.read else 0.75,
            detail="an output of all places, of which few are read" if found.read else "an output that nothing reads",
            remedy=_REMEDIES["labelled_only" if found.by_labels else "read_only" if found.read else "not_read"],
            rivals=("compute.at-limit", "compute.padding"),
        )


def in_trace_of_forms(case: Case) -> Iterator[Replayed]:
    """Work with a cheaper form."""
    for rank in case.ranks:
        price = price_on(rank)
        rewritten = (rewrite.wasted(rank, price) for rewrite in REWRITES)
        for found in filter(None, (*(find(rank) for find in _FORMS), *rewritten)):
            told = found.candidate(case, rank, CAUSE)
            if told.attributed_ns >= _LEAST_SHARE * case.step_ns:
                yield told


def in_trace_with_values(case: Case) -> Iterator[Replayed]:
    """Work that is done again within a step, is the same in each, or is read by nothing: by values of later steps."""
    recorded = {rank: wasted_calls(execution) for rank, execution in case.facts.values.items()}
    for rank in case.ranks:
        # A rank that runs the same program makes the same calls.
        calls = recorded.get(rank.rank, next(iter(recorded.values()), None))
        found = wasted_work(rank, calls) if calls is not None else None
        if found is None:
            continue
        for rows, back, what, remedy, surely in _kinds_of(found):
            nodes, also = case.work_of(rank, rows), case.work_of(rank, back)
            per_step = case.time_of(nodes)
            if min(per_step, case.usual_ns(rank, nodes)) < _LEAST_SHARE * case.step_ns:
                continue
            yield Replayed(
                cause=CAUSE.id,
                attributed_ns=per_step,
                evidence=(
                    evidence.time(what, per_step, case.events_of(nodes), per=case.per),
                    *([evidence.time("going back through it", case.time_of(also), per=case.per)] if back.any() else []),
                ),
                removal=case.without(nodes | also),
                floor=case.without(nodes, 1 - surely),
                method="replay: without it, by the tensors that operators were given in three later steps",
                code=code_of(case, nodes),
                ranks=(rank.rank,),
                uncertainty=0.15,
                confidence=0.85,
                detail=what,
                remedy=_REMEDIES[remedy],
                rivals=("host.launch-bound", "host.small-operators"),
            )


def _kinds_of(found: WastedWork) -> tuple[tuple[Mask, Mask, str, str, float], ...]:
    """Operators, those that go back through them, their description, their remedy, and the share surely saved."""
    none = found.backward & False
    remedy = "within" if found.backward.any() else "kept"
    return (
        (found.within_step, found.backward, "work done again within the same step", remedy, 1.0),
        (found.invariant, none, "work that gives the same in each step", "kept", _OF_FEW_STEPS),
        (found.dead, none, "work whose results nothing reads", "unread", _OF_FEW_STEPS),
    )


def _without_discarded(rank: RankCase) -> tuple[NDArray[np.float64], str, Remedy, int]:
    """The remaining share without wasted backward work, and its description."""
    left = discarded_backward(rank)
    if goes_through_again(rank, left < 1):
        return left, AGAIN, _REMEDIES["summed"], 0
    return left, "backward work whose gradients nothing reads", _REMEDIES["not_trained"], 0


def _of_checkpointing(times: float, held: int, per: Per) -> tuple[Evidence, ...]:
    """How often layers are computed again, where that is more than once; else the memory that it saves."""
    if times >= _NESTED:
        return (evidence.count("times that the backward pass runs an operator of the forward pass again", times),)
    return (evidence.size("memory that checkpointing saves, about", held, per=per),)


def _fits(case: Case, rank: RankCase, held: int) -> float:
    """The share of the memory that checkpointing saves for which there is room beside the peak; 1 where unknown."""
    room = room_bytes(case, rank)
    return 1.0 if room is None else min(room / held, 1.0)


def _needed(case: Case, rank: RankCase, per_step: int, held: int) -> Standing:
    """Checkpointing without which memory would not do."""
    return Standing(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("forward work done again in the backward pass", per_step, per=case.per),
            evidence.size("memory that checkpointing saves, about", held, per=case.per),
            evidence.size("allocated at the peak", peak_bytes(case, rank) or 0),
        ),
        severity="info",
        method="memory events: there is no room for what would be kept",
        ranks=(rank.rank,),
        confidence=0.85,
        detail="activation checkpointing, which memory asks for: what it saves does not fit beside the peak",
        remedy=_REMEDIES["memory_first"],
    )


def _recomputed(case: Case) -> Remedy:
    """The remedy for activation checkpointing, in the words of the job's trainer."""
    known = _REMEDIES["recomputed"]
    if case.facts.trainer != "transformers":
        return known
    return msgspec.structs.replace(known, patch="TrainingArguments(gradient_checkpointing=False)")


def _held_instead(case: Case, rank: RankCase, again: Mask) -> int:
    """The bytes, per step, of the first inputs of operators that run again: the alternative holds these."""
    table = rank.trace.operators
    if "sequence" not in table.columns:
        return 0
    at = table["ts_ns"].to_numpy()
    begin, end = case.window_on(rank)
    own = again & (table["sequence"].fill_null(-1).to_numpy() >= 0) & (at >= begin) & (at < end)
    parent = table["parent"].fill_null(-1).to_numpy()
    rows = np.flatnonzero(own & ~((parent >= 0) & own[parent]))
    return sum(judged(table.select("input_dims", "input_types")[rows], _first_bytes)) // max(case.steps, 1)


def _first_bytes(dims: str | None, types: str | None) -> int:
    return first_elements(dims) * (_BYTES // 2 if _HALF.match(types or "") else _BYTES)


def _with_weights(rank: RankCase, found: Products, passes: list[LongerPass]) -> NDArray[np.float64]:
    """The least time of each operator for one token: its call, and for a product reading its matrix, too.

    On a device the call is the host's; a matrix is read at the bandwidth that copies reach.
    """
    elements = found.size[:, 1] * found.size[:, 2]
    if rank.on_device:
        out = np.zeros(len(rank.trace.operators))
        speed = rank.workings.bytes_per_s
        if speed:
            types = rank.trace.operators["input_types"].gather(found.operator).cast(str).to_list()
            item = np.array([_BYTES / 2 if text and _HALF.search(text) else _BYTES for text in types])
            out[found.operator] = elements * item / (speed * BANDWIDTH_REACHED) * 1e9
        return out
    out = np.full(len(rank.trace.operators), CALL_NS)
    matrix = elements * _BYTES
    # Matrices that fit a core's caches together are still there when the next place comes.
    of_pass = [int(matrix[(found.at >= one.begin_ns) & (found.at < one.end_ns)].sum()) for one in passes]
    kept = float(np.median(of_pass)) <= _CACHED_BYTES
    out[found.operator] += matrix / (BYTES_PER_S * (_FASTER_CACHED if kept else 1)) * 1e9
    return out


def _left(
    case: Case, rank: RankCase, places: NDArray[np.int64], least_ns: NDArray[np.float64], times: float
) -> NDArray[np.float64]:
    """Remaining share of each node for work on one place, if calls and weights take ``times`` as long."""
    places = np.maximum(places, 1)  # a damaged file may say that a sequence has none
    if rank.on_device:
        return case.operator_values(
            rank, np.clip(np.maximum(1 / places, times * least_ns / _on_device(rank)), 0, 1), 1.0
        )
    own = np.maximum(rank.trace.operators["self_ns"].to_numpy(), 1)
    return case.operator_values(rank, np.minimum(np.maximum(1 / places, times * least_ns / own), 1.0), 1.0)


def _on_device(rank: RankCase) -> NDArray[np.float64]:
    """How long the device worked for each operator, in nanoseconds; at least one."""
    operator = rows_of(rank.trace.device_events["operator"])
    known = operator >= 0
    count = len(rank.trace.operators)
    return np.maximum(np.bincount(operator[known], durations(rank)[known], minlength=count), 1.0)


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "operators")),
        Finder(in_trace_of_decoding, ("trace", "operators", "shapes")),
        Finder(in_trace_of_heads, ("trace", "operators", "shapes")),
        Finder(in_trace_of_forms, ("trace", "operators", "shapes")),
        Finder(in_trace_with_values, ("trace", "operators", "shapes")),
        *(Finder(partial(find, cause=CAUSE), ("samples", "no_device")) for find in _IN_WATCHED),
    ),
)
