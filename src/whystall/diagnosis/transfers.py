"""Meetings of ranks in the graph: the transfer of a collective, and a rank's later part after the first has left."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystall.replay.graph import EdgeKind, Graph, Mask, NodeKind

Leaving = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Transfers, and the later part of each on a rank that left later than the first."""


def transfers_met(graph: Graph) -> NDArray[np.int64]:
    """For each node the transfer of a collective in which it meets other ranks, or -1."""
    out = np.full(len(graph.start), -1, np.int64)
    met = np.flatnonzero(graph.edge_kind == EdgeKind.RENDEZVOUS)
    met = met[graph.rank[graph.target[met]] == -1]
    out[graph.source[met].astype(np.int64)] = graph.target[met]
    return out


def leaving(graph: Graph) -> Leaving:
    """The rest of collectives on the ranks that left later than the first: it takes time, and is no rank's work."""
    lasting = (graph.kind == NodeKind.JOINT) & (graph.rank >= 0) & (graph.duration > 0)
    edges = np.flatnonzero((graph.edge_kind == EdgeKind.RENDEZVOUS) & lasting[graph.target])
    return graph.source[edges].astype(np.int64), graph.target[edges]


def scale_leaving(graph: Graph, after: Leaving, duration: NDArray[np.int64] | NDArray[np.float64]) -> None:
    """Scales, in new lengths of nodes, the later parts of a transfer by the transfer's own factor."""
    transfer, node = after
    share = np.minimum(duration[transfer] / np.maximum(graph.duration[transfer], 1), 1.0)
    duration[node] = np.minimum(duration[node], np.floor(graph.duration[node] * share))


def with_transfers(graph: Graph, after: Leaving, nodes: Mask) -> Mask:
    """Collectives' nodes together with the transfers that all their ranks wait for, and their later parts."""
    met = (graph.edge_kind == EdgeKind.RENDEZVOUS) & nodes[graph.source.astype(np.int64)]
    out = nodes.copy()
    out[graph.target[met]] = True
    transfer, node = after
    out[node[out[transfer]]] = True
    return out
