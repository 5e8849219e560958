"""One cheaper form of a computation: its pattern in the graph of values, and its description."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from whystall.analysis.dataflow.graph import Dataflow
from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.going_back import backward_of
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rewrites.price import Price


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes of a costlier form, with the share of each one's time that the cheaper form takes.

    ``facts`` are the numbers that the rewrite's labels and title name, those of its size first. ``backward``: whether
    the backward pass of the nodes shrinks by the same share.
    """

    left: Mapping[int, float]
    facts: tuple[int, ...]
    backward: bool = True


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A cheaper form of a pattern that begins with ``anchors``.

    Args:
        anchors: The operators that begin a search: a recording without any costs nothing.
        match: The match at an anchor's node in the graph of values.
        remedy: The name of the cause's remedy.
        labels: Labels of the largest match's facts.
        what: Description of the time.
        method: The method behind the gain.
        detail: The title's part, with places for the facts.
        smaller: Whether the calls of the cheaper form are smaller, and so less efficient.
    """

    anchors: frozenset[str]
    match: Callable[[Dataflow, int, Price], Match | None]
    remedy: str
    labels: tuple[str, ...]
    what: str
    method: str
    detail: str
    smaller: bool = True

    def wasted(self, rank: RankCase, price: Price) -> Wasted | None:
        """The operators of a rank that the cheaper form replaces; ``None`` where there are none."""
        if self.anchors.isdisjoint(rank.workings.tree.names):
            return None
        graph = rank.dataflow
        found = [one for node in graph.named(self.anchors) if (one := self._matched(graph, node, price)) is not None]
        if not found:
            return None
        left: dict[int, float] = {}
        for node, share in (part for one in found for part in one.left.items()):
            left[node] = min(left.get(node, 1.0), share)
        nodes = np.array(list(left), np.int64)
        rows = graph.rows[nodes]
        lasts = np.maximum(rank.trace.operators["duration_ns"].to_numpy()[rows], 1)
        share = min(float(np.average(list(left.values()), weights=lasts)), 1.0)
        times = price.smaller if self.smaller else 1.0
        if share * times**0.5 >= 1:
            return None
        marked = np.zeros(len(rank.trace.operators), np.bool_)
        marked[rows] = True
        marked |= rank.workings.tree.below(marked)
        largest = max(found, key=lambda one: one.facts).facts
        return Wasted(
            operators=marked | backward_of(rank, marked) if all(one.backward for one in found) else marked,
            left=(
                share if self.smaller else share / price.smaller**0.5,
                min(share * times**0.5, 1.0),
                min(share * price.smaller ** (1.0 if self.smaller else 0.5), 1.0),
            ),
            what=self.what,
            facts=tuple(evidence.count(label, fact) for label, fact in zip(self.labels, largest, strict=False)),
            method=self.method,
            detail=self.detail.format(*largest),
            remedy=self.remedy,
        )

    def _matched(self, graph: Dataflow, node: int, price: Price) -> Match | None:
        try:
            return self.match(graph, node, price)
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return None  # a damaged recording has calls that fit no form: without tensors, with sizes of none
