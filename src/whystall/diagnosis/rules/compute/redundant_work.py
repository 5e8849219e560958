"""Forward work that is done again in the backward pass, or that no backward pass uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from whystall._native import nearest_marked
from whystall.analysis.operators import OperatorTree
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import matching

CAUSE: Final = cause_beside(__name__)
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution"})


def in_trace(case: Case) -> Iterator[Replayed]:
    """Both kinds, by the numbers that autograd gives what it will differentiate."""
    for rank in case.ranks:
        again, unused = _repeated_operators(rank)
        for rows, what in (
            (again, "forward work done again in the backward pass"),
            (unused, "forward work that no backward pass uses"),
        ):
            if not rows.any():
                continue
            nodes = case.work_of(rank, rows)
            per_step = case.time_of(nodes)
            if per_step >= _LEAST_SHARE * case.step_ns and _in_most_steps(case, rank, nodes):
                yield Replayed(
                    cause=CAUSE.id,
                    attributed_ns=per_step,
                    evidence=(evidence.time(what, per_step, case.events_of(nodes), per=case.per),),
                    removal=case.without(nodes | case.host_within_operators(rank, rows)),
                    method="replay: without it",
                    code=code_of(case, nodes),
                    ranks=(rank.rank,),
                    uncertainty=0.15,
                    confidence=0.85,
                    detail=what,
                    rivals=("host.launch-bound",),
                )


def _in_most_steps(case: Case, rank: RankCase, nodes: Mask) -> bool:
    """Whether nodes take a share of the median step (what fills a few steps only is an episode)."""
    graph = case.replayed
    steps = rank.trace.steps
    if len(steps) < 2:
        return True
    chosen = np.flatnonzero(nodes)
    if rank.on_device:
        step = rank.trace.device_events["step"].fill_null(-1).to_numpy()[graph.event[chosen]]
    else:
        at = graph.start[chosen] - graph.clock_shift_ns.get(rank.rank, 0)
        step = np.searchsorted(steps["ts_ns"].to_numpy(), at, side="right") - 1
    inside = step >= 0
    time = np.bincount(step[inside], weights=graph.duration[chosen[inside]], minlength=len(steps))
    return float(np.median(time)) >= _LEAST_SHARE * case.step_ns


def _repeated_operators(rank: RankCase) -> tuple[Mask, Mask]:
    """Operators of a forward pass that run again during the backward pass, and those no backward operator refers to.

    Autograd numbers what it will differentiate; a backward operator carries the number of its forward.
    """
    table = rank.trace.operators
    nothing = np.zeros(len(table), np.bool_)
    if table.is_empty() or "sequence" not in table.columns:
        return nothing, nothing
    sequence = table["sequence"].fill_null(-1).to_numpy()
    backward = table["forward_thread"].fill_null(0).to_numpy() > 0
    if not backward.any():
        return nothing, nothing
    used = np.unique(sequence[backward & (sequence >= 0)])
    forward = (sequence >= 0) & ~backward
    engine = matching(table["name"], lambda name: name.startswith("autograd::engine"))
    tree = rank.workings.tree
    in_backward = backward | engine
    inside = in_backward | _below(tree, in_backward)
    unused_own = forward & ~np.isin(sequence, used)
    again_own = forward & inside & ~in_backward
    again = again_own | _below(tree, again_own)
    unused = (unused_own | _below(tree, unused_own)) & ~inside
    return again, unused if _does_matrices(table, unused) else nothing


def _below(tree: OperatorTree, marked: Mask) -> Mask:
    """Which operators lie inside a marked one."""
    return nearest_marked(tree.order, tree.parent, marked.astype(np.uint8)) >= 0


def _does_matrices(table: pl.DataFrame, rows: Mask) -> bool:
    return bool(matching(table["name"], _PRODUCTS.__contains__)[rows].any())


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators")),))
