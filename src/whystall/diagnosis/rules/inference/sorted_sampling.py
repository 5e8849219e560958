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
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, all_sizes, first_size

CAUSE: Final = cause_beside(__name__)
_LEAST_SCORES: Final = int(CAUSE.threshold("least_scores"))
_PASSES: Final = CAUSE.threshold("passes")
_MOST_PASSES: Final = CAUSE.threshold("most_passes")
_SORTS: Final = frozenset({"aten::sort", "aten::argsort", "aten::msort"})
_DRAWS: Final = frozenset({"aten::cumsum", "aten::multinomial", "aten::exponential_"})
"""Operators that add up probabilities, or draw by them."""
_BYTES: Final = 4


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

    both = sizes(_SORTS) & sizes(_DRAWS)
    return sorted(shape for shape in both if shape and shape[-1] >= _LEAST_SCORES)


def _passes_over(rank: RankCase, shape: Shape) -> Mask:
    """The operators that are given tensors of a size, and what they call."""
    table = rank.trace.operators
    given = np.array(judged(table.select("input_dims"), lambda dims: shape in all_sizes(dims)), np.bool_)
    return given | rank.workings.tree.below(given)


def _by_a_kernel(case: Case, rank: RankCase, shape: Shape, nodes: Mask, pass_ns: float) -> Replayed:
    duration = case.replayed.duration
    spent, steps = float(duration[nodes].sum()), _draws(rank, shape)

    def at(passes: float) -> Change:
        left = min(passes * pass_ns * steps / max(spent, 1.0), 1.0)
        return Change(duration=np.where(nodes, (duration * left).astype(np.int64), duration))

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
        removal=at(_PASSES),
        floor=at(_MOST_PASSES),
        method="replay: the passes over the logits that sampling kernels make",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        confidence=0.85,
        detail=f"{shape[-1]:,} tokens",
        rivals=("compute.fusible", "compute.redundant-work"),
    )


def _draws(rank: RankCase, shape: Shape) -> int:
    """How often scores of a size are sorted: sorts that another one calls are not counted."""
    table = rank.trace.operators
    sorts = matching(table["name"], _SORTS.__contains__)
    rows = np.flatnonzero(sorts & ~rank.workings.tree.below(sorts))
    return int(np.sum(np.array(judged(table.select("input_dims")[rows], lambda dims: first_size(dims) == shape))))


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),))
