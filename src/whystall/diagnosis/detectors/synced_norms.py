"""The exchange of statistics by SyncBatchNorm: its collectives, its waits of the host, and what it calls for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import collectives, launching, not_made
from whystall.diagnosis.detectors.host_calls import (
    calls_per_step,
    operators_with,
    waiting_calls,
    waits_within,
)
from whystall.diagnosis.detectors.issuers import issuers
from whystall.diagnosis.detectors.wait_kinds import calls_of_kind
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Change, EdgeKind, Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

NORMS: Final = "norms"
"""The kind of its collectives and of its waits, in the tables of both."""
_FUNCTION: Final = re.compile(r"^SyncBatchNorm(Backward)?$")
# Its operators that BatchNorm needs as well (torch/nn/modules/_functions.py): statistics, and going through the values.
_OF_EACH: Final = re.compile(r"^aten::(batch_norm_(stats|elemt|backward_reduce|backward_elemt)|cudnn_|miopen_|native_)")


@dataclass(frozen=True, slots=True)
class Exchange:
    """The nodes of the collectives and of all that is done for them, and the graph without both."""

    bodies: Mask
    others: Mask
    waits_per_step: float
    """On the rank that waits most often."""
    removal: Change


def exchange(case: Case) -> Exchange:
    """The exchange of statistics on all ranks."""
    graph = case.replayed
    bodies, others = np.zeros(len(graph.start), np.bool_), np.zeros(len(graph.start), np.bool_)
    waits, most = np.zeros(len(graph.edge_kind), np.bool_), 0.0
    for rank in case.ranks:
        found = collectives(case, rank)
        own = (found.node >= 0) & (issuers(case, rank, found) == NORMS)
        bodies |= found.nodes(case, own)
        every = (graph.edge_kind == EdgeKind.SYNC) & (graph.rank[graph.target] == rank.rank)
        reads = calls_of_kind(rank, waiting_calls(case, rank, graph.target[every]), NORMS)
        waits |= waits_within(case, rank, reads)
        most = max(most, calls_per_step(case, rank, reads))
        called = _called_for_it(rank)
        called[operators_with(rank, reads)] = True
        others |= launching(case, rank, found, own) | case.host_within_operators(rank, called)
        launcher = rows_of(rank.trace.device_events["operator"])
        others |= case.nodes(rank, device=np.append(called, np.False_)[launcher])
    others &= ~bodies
    without = not_made(case, bodies, others)
    gone = waits if without.removed_edges is None else waits | without.removed_edges
    return Exchange(bodies, others, most, replace(without, removed_edges=gone))


def _called_for_it(rank: RankCase) -> Mask:
    """The operators that SyncBatchNorm calls and BatchNorm does not."""
    tree, names = rank.workings.tree, rank.trace.operators["name"]
    within = tree.below(matching(names, _FUNCTION.search))
    kept = matching(names, _OF_EACH.search)
    called: Mask = within & ~kept & ~tree.below(kept)
    return called
