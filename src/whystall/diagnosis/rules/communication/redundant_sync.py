"""What ranks synchronise though they need not: gradients of every micro-batch, weights that replicas share already."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import (
    DDP_FORWARD,
    Collectives,
    are,
    collectives,
    launching,
    not_made,
    spent_ns,
)
from whystall.diagnosis.detectors.samples import from_samples, off_core
from whystall.diagnosis.detectors.sent_again import broadcast_again
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.trace.columns import matching
from whystall.trace.steps import OPTIMIZER_STEP

CAUSE: Final = cause_beside(__name__)
# Of the time off its core a rank keeps some: it waits for the last reduction a little longer, and for other ranks.
_SURE, _USUAL = 0.5, 0.85
_REDUCTION: Final = re.compile(r"^all_?reduce", re.IGNORECASE)
_GRADIENTS: Final = "gradients of every micro-batch"
_WEIGHTS: Final = "weights that the replicas have already"
_DO_NOT_SEND: Final = Remedy(
    text="Send weights once, before the first step (DistributedDataParallel does): replicas that begin alike and get "
    "the same gradients stay alike, their optimizers' states too.",
    patch=None,
    risk="What only one rank changes (a weight that is set by hand, its own random numbers in an optimizer) is to be "
    "sent when it changes.",
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
    )


def sent_again(case: Case) -> Iterator[Replayed]:
    """Broadcasts, in nearly every step, of as many bytes as the gradients have, or a whole multiple of that.

    With the weights go two moments, or more. DistributedDataParallel keeps all of it alike by itself.
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


def in_samples(case: Case) -> Iterator[Sampled]:
    """The same of a watched job on CPUs: reducing takes cores as well, which the graph of a recording does not know.

    A rank that waits for a reduction, or for a core that one has, is on none.
    """
    for rank in case.ranks:
        run = case.sampled(rank)
        found = collectives(case, rank)
        again, _ = _reduced_again(rank, found)
        if run is None or not again.any():
            continue
        spent = spent_ns(case, found.nodes(case, again))
        share = spent / max(spent_ns(case, found.nodes(case, np.ones(len(again), np.bool_))), 1)
        off = min(max(off_core(run, lambda line: "sleep" in line.text), 0.0) * share, 1.0)
        yield from_samples(
            CAUSE.id,
            run,
            off,
            evidence=(evidence.share("of the steps' time a rank was on no core, in the share of its reductions", off),),
            saved=(_SURE * off, _USUAL * off, off),
            method="samples: time off the core, in the share of the reductions that are made again",
            detail=_GRADIENTS,
            confidence=0.9,
            rivals=("communication.exposed", "communication.small-messages", "communication.low-bandwidth"),
        )


def _without(
    case: Case,
    which: Callable[[RankCase, Collectives], tuple[NDArray[np.bool_], float]],
    told: tuple[str, str],
    **about: Any,
) -> Iterator[Replayed]:
    """The job without the collectives that ``which`` finds on each rank; with them comes a number that tells of them.

    ``told`` says what that number is, and what the collectives are.
    """
    nodes = np.zeros(len(case.replayed.start), np.bool_)
    host = nodes.copy()
    most = 0.0
    for rank in case.ranks:
        found = collectives(case, rank)
        again, number = which(rank, found)
        if again.any():
            nodes |= found.nodes(case, again)
            host |= launching(case, rank, found, again)
            most = max(most, number)
    if not nodes.any():
        return
    spent = spent_ns(case, nodes)
    count = int(np.count_nonzero(case.in_window(nodes))) / max(case.steps * len(case.ranks), 1)
    yield Replayed(
        cause=CAUSE.id,
        attributed_ns=spent,
        evidence=(
            evidence.count(told[0], most),
            evidence.count(told[1], count, case.events_of(nodes), per=case.per),
            evidence.time("spent in them by a rank", spent, per=case.per),
        ),
        removal=not_made(case, nodes, host),
        ranks=tuple(rank.rank for rank in case.ranks),
        rivals=("communication.exposed", "communication.small-messages", "communication.low-bandwidth"),
        **about,
    )


def _reduced_again(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], float]:
    """Which reductions are made again, of the same sizes, before the optimizer's next step; and passes to a step."""
    out = np.zeros(len(found.node), np.bool_)
    marks = rank.trace.annotations
    starts = marks["ts_ns"].to_numpy()
    passes = np.sort(starts[matching(marks["name"], DDP_FORWARD.search)])
    steps = np.sort(starts[matching(marks["name"], OPTIMIZER_STEP.search)])
    if not len(steps):
        steps = np.sort(rank.trace.steps["ts_ns"].to_numpy())
    if len(passes) < 2 or not len(steps):
        return out, 0.0
    launched = rank.launch_time[found.row] if found.row is not None else found.start
    rows = np.flatnonzero(are(found, _REDUCTION) & (launched >= passes[0]))
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


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "operators")),
        Finder(sent_again, ("trace", "operators", "steps")),
        Finder(in_samples, ("trace", "operators", "samples", "no_device")),
    ),
)
