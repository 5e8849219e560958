"""Logits that are sorted as a whole to draw a token: a sampling kernel reads them a few times."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.kernels import BANDWIDTH_REACHED
from whystall.diagnosis.detectors.sorted_draws import SORTS, sorted_draws
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, all_sizes, first_size
from whystall.vocabulary.signals import SIGNALS

CAUSE: Final = cause_beside(__name__)
_LEAST_SCORES: Final = int(CAUSE.threshold("least_scores"))
_PASSES: Final = CAUSE.threshold("passes")
_MOST_PASSES: Final = CAUSE.threshold("most_passes")
_DRAWS: Final = frozenset({"aten::cumsum", "aten::multinomial", "aten::exponential_"})
"""Operators that add up probabilities, or draw by them."""
_BYTES: Final = 4
_SOFTMAX_PASSES: Final = CAUSE.threshold("softmax_passes")
_FEWEST_SOFTMAX_PASSES: Final = CAUSE.threshold("fewest_softmax_passes")
_SORT_PASSES: Final = CAUSE.threshold("sort_passes")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Logits of a whole vocabulary that are sorted, where nothing learns."""
    for rank in case.ranks:
        speed = rank.workings.peak.memory_bytes_per_s if rank.workings.peak is not None else None
        if not rank.on_device or rank.trains or speed is None:
            continue
        for shape in _sorted_scores(rank):
            passes = _passes_over(rank, shape)
            nodes = case.work_of(rank, passes)
            if nodes.any():
                yield _by_a_kernel(case, rank, shape, nodes, prod(shape) * _BYTES / speed / BANDWIDTH_REACHED * 1e9)


def _sorted_scores(rank: RankCase) -> list[Shape]:
    """The sizes of logits that are sorted, and by whose probabilities tokens are drawn: sequences x vocabulary."""
    table = rank.trace.operators

    def sizes(names: frozenset[str]) -> set[Shape]:
        rows = np.flatnonzero(matching(table["name"], names.__contains__))
        return set(judged(table.select("input_dims")[rows], first_size))

    both = sizes(SORTS) & sizes(_DRAWS)
    return sorted(shape for shape in both if shape and shape[-1] >= _LEAST_SCORES)


def _passes_over(rank: RankCase, shape: Shape) -> Mask:
    """The operators that are given tensors of a size, and what they call."""
    table = rank.trace.operators
    given = np.array(judged(table.select("input_dims"), lambda dims: shape in all_sizes(dims)), np.bool_)
    return given | rank.workings.tree.below(given)


def _by_a_kernel(case: Case, rank: RankCase, shape: Shape, nodes: Mask, pass_ns: float) -> Replayed:
    draws = _draws(rank, shape)
    per_step = case.time_of(nodes)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("work on all logits", per_step, case.events_of(nodes), per=case.per),
            evidence.count("kernels that do it", count_per_step(case, nodes), per=case.per),
            evidence.text("sequences x vocabulary that are sorted", " x ".join(f"{size:,}" for size in shape)),
            evidence.time("one pass over them at the device's bandwidth", round(pass_ns)),
        ),
        removal=_shortened(case, nodes, _PASSES * pass_ns * draws),
        floor=_shortened(case, nodes, _MOST_PASSES * pass_ns * draws),
        method="replay: the passes over the logits that sampling kernels make",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        confidence=0.85,
        detail=f"{shape[-1]:,} tokens",
        rivals=("compute.fusible", "compute.redundant-work"),
    )


def without_sizes(case: Case) -> Iterator[Replayed]:
    """Sorts of long rows and the draws behind them, by operators and kernels, priced by a softmax over the scores."""
    for rank in case.ranks:
        found = None if rank.analysis.signals.get("shapes") else sorted_draws(rank)
        if found is None:
            continue
        nodes = case.nodes(rank, device=found.events)
        per_step = case.time_of(nodes)
        pass_ns = found.softmax_ns / _SOFTMAX_PASSES
        longest_ns = max(found.softmax_ns / _FEWEST_SOFTMAX_PASSES, found.sort_ns / _SORT_PASSES)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "from a sort of long rows to the draw behind it", per_step, case.events_of(nodes), per=case.per
                ),
                evidence.count("kernels that do it", count_per_step(case, nodes), per=case.per),
                evidence.time("one pass over the scores, by their softmax", round(pass_ns / found.draws)),
            ),
            removal=_shortened(case, nodes, _PASSES * pass_ns),
            floor=_shortened(case, nodes, _MOST_PASSES * longest_ns),
            method="replay: the passes over the scores that sampling kernels make, at the rate of the recorded softmax",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.7,
            missing=(SIGNALS["shapes"].name,),
            rivals=("compute.fusible", "compute.redundant-work"),
        )


def _shortened(case: Case, nodes: Mask, left_ns: float) -> Change:
    """The graph with nodes that take ``left_ns`` together, if that is less than now."""
    duration = case.replayed.duration
    left = min(left_ns / max(float(duration[nodes].sum()), 1.0), 1.0)
    return Change(duration=np.where(nodes, (duration * left).astype(np.int64), duration))


def _draws(rank: RankCase, shape: Shape) -> int:
    """How often scores of a size are sorted: sorts that another one calls are not counted."""
    table = rank.trace.operators
    sorts = matching(table["name"], SORTS.__contains__)
    rows = np.flatnonzero(sorts & ~rank.workings.tree.below(sorts))
    return int(np.sum(np.array(judged(table.select("input_dims")[rows], lambda dims: first_size(dims) == shape))))


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),
        Finder(without_sizes, ("trace", "device_events", "operators")),
    ),
)
