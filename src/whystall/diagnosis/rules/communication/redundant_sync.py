"""Needless synchronisation of ranks: gradients of every micro-batch, weights that replicas share already."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.averaged_by_hand import averaged_by_hand
from whystall.diagnosis.detectors.collectives import (
    DDP_FORWARD,
    Collectives,
    are,
    collectives,
    launched_ns,
    launching,
    not_made,
    spent_ns,
)
from whystall.diagnosis.detectors.gathered_again import gathered_again, is_of_zero
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.room import memory_bytes, room_bytes
from whystall.diagnosis.detectors.samples import from_samples, off_core
from whystall.diagnosis.detectors.sent_again import broadcast_again
from whystall.diagnosis.detectors.thrown_away import thrown_away
from whystall.diagnosis.finding import Evidence, Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.trace.columns import matching
from whystall.trace.steps import OPTIMIZER_STEP

CAUSE: Final = cause_beside(__name__)
# A rank keeps some of the time off its core: it waits for the last reduction a little longer, and for other ranks.
_SURE, _USUAL = 0.5, 0.85
_FEWEST_PASSES: Final = 2
_SUM: Final = re.compile(r"^all_?reduce", re.IGNORECASE)
_SUM_OR_SHARE: Final = re.compile(r"^(all_?reduce|_?reduce_?scatter)", re.IGNORECASE)
# torch/csrc/distributed/c10d/reducer.cpp
_COPIES: Final = re.compile(r"^torch(::|\.)distributed.*reducer::(mul_out|copy_grad_to_bucket|copy_bucket_to_grad)$")
_BACK: Final = "copy_bucket_to_grad"
_GRADIENTS: Final = "gradients of every micro-batch"
_WEIGHTS: Final = "weights that the replicas have already"
_GATHERED: Final = "parameters that the forward pass had gathered"
_SMALL: Final = CAUSE.threshold("small")
_REPLICAS: Final = CAUSE.threshold("replicas")
_UNUSED: Final = "gradients that the optimizer which steps next does not use"


class _Wrapper(NamedTuple):
    """A library that reduces gradients: its mark at the beginning of a pass, and its reductions' spans (or none)."""

    begins: re.Pattern[str]
    reduction: re.Pattern[str]
    reduces: re.Pattern[str] | None
    remedy: str | None


# A model's own messages (tensor parallelism) lie outside FSDP's marks.
_WRAPPERS: Final = (
    _Wrapper(DDP_FORWARD, _SUM, None, None),
    _Wrapper(
        re.compile(r"^FSDP::root_pre_forward$"), _SUM_OR_SHARE, re.compile(r"^FSDP::post_backward_reduce\b"), "fsdp"
    ),
)
_DO_NOT_SEND: Final = Remedy(
    text="Send weights once, before the first step (DistributedDataParallel does): replicas that begin alike and get "
    "the same gradients stay alike, their optimizers' states too.",
    patch=None,
    risk="Send values that only one rank changes (a weight that is set by hand, its own random numbers in an "
    "optimizer) when they change.",
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Reductions of gradients after which more of the same are added, before the optimizer takes a step."""
    yield from _without(
        case,
        _reduced_again,
        ("backward passes to a step of the optimizer", "reductions of gradients that are reduced again"),
        method="replay: gradients are reduced in the last backward pass before the optimizer's step alone",
        detail=_GRADIENTS,
        confidence=0.9,
        remedy=_remedy(case, case.ranks[0]),
    )


def sent_again(case: Case) -> Iterator[Replayed]:
    """Broadcasts, in nearly every step, of the gradients' bytes, or of a whole multiple.

    With the weights go two moments, or more. DistributedDataParallel itself keeps all of it alike.
    """
    yield from _without(
        case,
        broadcast_again,
        ("times the bytes of the gradients are sent so", "broadcasts beside DistributedDataParallel"),
        method="replay: without these broadcasts",
        detail=_WEIGHTS,
        confidence=0.85,
        remedy=_DO_NOT_SEND,
    )


def unused(case: Case) -> Iterator[Replayed]:
    """Reductions of a network's gradients in the turn of another one, whose optimizer steps next."""
    yield from _without(
        case,
        thrown_away,
        ("of the reduced bytes no optimizer uses", "reductions of gradients that are not used"),
        method="replay: without the reductions of gradients that are not used",
        detail=_UNUSED,
        confidence=0.85,
        remedy=CAUSE.remedies["unused"],
    )


def gathered_for_both_passes(case: Case) -> Iterator[Replayed]:
    """Gathers for the backward pass, where there is room to keep what the forward pass gathered."""
    for rank in case.ranks:
        _, kept = gathered_again(rank, collectives(case, rank))
        whole, room = memory_bytes(rank), room_bytes(case, rank)
        if not kept or whole is None or kept > (_SMALL * whole if room is None else room):
            return
    yield from _without(
        case,
        gathered_again,
        ("parameters that would be kept gathered", "gathers for the backward pass"),
        amount=evidence.size,
        method="replay: without the gathers for the backward pass",
        detail=_GATHERED,
        confidence=0.85,
        remedy=CAUSE.remedies["kept_by_zero" if any(map(is_of_zero, case.ranks)) else "kept_gathered"],
    )


def in_samples(case: Case) -> Iterator[Sampled]:
    """The same for a watched job on CPUs: reducing takes cores as well, which a recording's graph does not show.

    A rank that waits for a reduction, or for a core that one has, is on none. FSDP's work around a reduction (it copies
    gradients together) goes with it.
    """
    for rank in case.ranks:
        yield from _sampled(case, rank, _reduced_again, _GRADIENTS, _remedy(case, rank))
        yield from _sampled(case, rank, thrown_away, _UNUSED, CAUSE.remedies["unused"])


def _sampled(
    case: Case,
    rank: RankCase,
    which: Callable[[RankCase, Collectives], tuple[NDArray[np.bool_], float]],
    detail: str,
    remedy: Remedy | None,
) -> Iterator[Sampled]:
    run = case.sampled(rank)
    found = collectives(case, rank)
    again, _ = which(rank, found)
    if run is not None and again.any():
        spent = spent_ns(case, found.nodes(case, again))
        share = spent / max(spent_ns(case, found.nodes(case, np.ones(len(again), np.bool_))), 1)
        off = min(max(off_core(run, lambda line: "sleep" in line.text), 0.0) * share, 1.0)
        around = max(_around(case, rank, found, again) / max(case.recorded_ns, 1), off)
        yield from_samples(
            CAUSE.id,
            run,
            around,
            evidence=(
                evidence.share("of the steps' time a rank was on no core, in the share of its reductions", off),
                *([evidence.share("of the recorded time in what FSDP does for them", around)] if around > off else []),
            ),
            # Part of the surrounding time waits for ranks that come later, with any reduction.
            saved=(_SURE * off, _USUAL * (off + around) / 2, around),
            method="samples: time off the core, in the share of the reductions that are made for nothing",
            detail=detail,
            confidence=0.9,
            remedy=remedy,
            rivals=("communication.exposed", "communication.small-messages", "communication.low-bandwidth"),
        )


def _without(
    case: Case,
    which: Callable[[RankCase, Collectives], tuple[NDArray[np.bool_], float]],
    told: tuple[str, str],
    *,
    amount: Callable[[str, Any], Evidence] = evidence.count,
    **about: Any,
) -> Iterator[Replayed]:
    """The job without the collectives that ``which`` finds on each rank, each with a number that describes them.

    ``told`` describes that number, an ``amount``, and the collectives.
    """
    nodes = np.zeros(len(case.replayed.start), np.bool_)
    host = nodes.copy()
    most = 0.0
    for rank in case.ranks:
        found = collectives(case, rank)
        again, number = which(rank, found)
        if again.any():
            nodes |= found.nodes(case, again)
            host |= launching(case, rank, found, again) | _copies(case, rank, found, again)
            most = max(most, number)
    if not nodes.any():
        return
    spent = spent_ns(case, nodes)
    count = count_per_step(case, nodes) / len(case.ranks)
    yield Replayed(
        cause=CAUSE.id,
        attributed_ns=spent,
        evidence=(
            amount(told[0], most),
            evidence.count(told[1], count, case.events_of(nodes), per=case.per),
            evidence.time("spent in them by a rank", spent, per=case.per),
        ),
        removal=not_made(case, nodes, host),
        ranks=tuple(rank.rank for rank in case.ranks),
        rivals=("communication.exposed", "communication.small-messages", "communication.low-bandwidth"),
        **about,
    )


def _copies(case: Case, rank: RankCase, found: Collectives, again: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """DistributedDataParallel's copies of gradients into the buckets of some reductions, and back behind them."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], _COPIES.search))
    drawn = np.flatnonzero(found.node >= 0)
    if not len(rows) or not len(drawn):
        return np.zeros(len(case.replayed.start), np.bool_)
    launched = launched_ns(rank, found)[drawn]
    order = np.argsort(launched, kind="stable")
    behind = np.searchsorted(launched[order], table["ts_ns"].to_numpy()[rows])
    back = matching(table["name"], lambda name: name.endswith(_BACK))[rows]
    bucket = np.clip(behind - back, 0, len(order) - 1)
    own = np.zeros(len(table), np.bool_)
    own[rows[again[drawn[order[bucket]]]]] = True
    own |= rank.workings.tree.below(own)
    nodes: NDArray[np.bool_] = case.host_within_operators(rank, own) | case.nodes(rank, device=rank.launched_by(own))
    return nodes


def _reduced_again(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], float]:
    """Which reductions are made again, of the same sizes, before the optimizer's next step; and passes to a step."""
    out = np.zeros(len(found.node), np.bool_)
    marks = rank.trace.annotations
    starts = marks["ts_ns"].to_numpy()
    wrapper, passes = _wrapper(rank)
    steps = np.sort(starts[matching(marks["name"], OPTIMIZER_STEP.search)])
    if not len(steps):
        steps = np.sort(rank.trace.steps["ts_ns"].to_numpy())
    launched = launched_ns(rank, found)
    if wrapper is None:
        chosen, passes = averaged_by_hand(rank, found)
    else:
        chosen = are(found, wrapper.reduction) & (launched >= passes[0])
        if wrapper.reduces is not None:
            chosen &= within(launched, *_reducing(rank, wrapper.reduces))
    rows = np.flatnonzero(chosen)
    if not len(rows) or not len(steps):
        return out, 0.0
    own = np.searchsorted(passes, launched[rows], side="right") - 1
    order = np.argsort(own, kind="stable")
    of_pass = np.split(rows[order], np.searchsorted(own[order], np.arange(1, len(passes))))
    group = np.searchsorted(steps, passes, side="right")
    lengths = []
    for together in np.split(np.arange(len(passes)), np.flatnonzero(np.diff(group)) + 1):
        *earlier, last = together.tolist()
        sizes = Counter(found.size[of_pass[last]].tolist())
        lengths.append(1 + len(earlier))
        for each in earlier:
            if Counter(found.size[of_pass[each]].tolist()) <= sizes:
                out[of_pass[each]] = True
    return out, float(np.median(lengths))


def _reducing(rank: RankCase, mark: re.Pattern[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of the marks within which gradients are reduced, by begin."""
    begin, end, _ = rank.intervals(rank.host_named(lambda name: bool(mark.match(name)), ("annotations",)))
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


def _around(case: Case, rank: RankCase, found: Collectives, chosen: NDArray[np.bool_]) -> int:
    """The time of the replayed window's marks in which some reductions are launched, ns; 0 where there are none."""
    wrapper, _ = _wrapper(rank)
    if wrapper is None or wrapper.reduces is None:
        return 0
    begin, end = _reducing(rank, wrapper.reduces)
    marks = np.unique(np.searchsorted(begin, launched_ns(rank, found)[chosen], side="right") - 1)
    first, last = case.window_on(rank)
    marks = marks[(marks >= 0) & (begin[marks] >= first) & (begin[marks] < last)]
    return int((end - begin)[marks].sum())


def _wrapper(rank: RankCase) -> tuple[_Wrapper | None, NDArray[np.int64]]:
    """The library that reduces a rank's gradients, and the begins of its passes, at least two."""
    marks = rank.trace.annotations
    starts = marks["ts_ns"].to_numpy()
    for wrapper in _WRAPPERS:
        passes = np.sort(starts[matching(marks["name"], wrapper.begins.search)])
        if len(passes) >= _FEWEST_PASSES:
            return wrapper, passes
    return None, np.zeros(0, np.int64)


def _remedy(case: Case, rank: RankCase) -> Remedy | None:
    """The remedy where a library other than DistributedDataParallel reduces."""
    wrapper, _ = _wrapper(rank)
    named = "by_hand" if wrapper is None else wrapper.remedy
    if named == "fsdp" and _is_mostly_of_replicas(case, rank):
        named = "hybrid"
    return None if named is None else CAUSE.remedies[named]


def _is_mostly_of_replicas(case: Case, rank: RankCase) -> bool:
    """Whether sums over replicas, which follow each reduce-scatter in hybrid sharding, are what takes the time."""
    found = collectives(case, rank)
    again, _ = _reduced_again(rank, found)
    sums = spent_ns(case, found.nodes(case, again & are(found, _SUM)))
    return sums >= _REPLICAS * max(spent_ns(case, found.nodes(case, again)), 1)


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "operators")),
        Finder(sent_again, ("trace", "operators", "steps")),
        Finder(unused, ("trace", "operators", "shapes")),
        Finder(gathered_for_both_passes, ("trace", "device_events", "operators", "steps")),
        Finder(in_samples, ("trace", "operators", "samples", "no_device")),
    ),
)
