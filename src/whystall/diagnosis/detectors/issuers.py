"""Issuers of a rank's collectives, and the one behind most of some collectives."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.around import within_library, within_operators
from whystall.diagnosis.detectors.collectives import Collectives, collectives
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.link import rows_of
from whystall.vocabulary.issuers import issuer_rows

_UNKNOWN: Final = ""


def issuers(case: Case, rank: RankCase, found: Collectives) -> NDArray[np.object_]:
    """The kind of issuer of each of a rank's collectives; empty where none is known."""
    key = ("issuers", rank.rank)
    if key not in case.kept:
        case.kept[key] = _issuers(rank, found)
    kinds: NDArray[np.object_] = case.kept[key]
    return kinds


def _issuers(rank: RankCase, found: Collectives) -> NDArray[np.object_]:
    kinds = np.full(len(found.node), _UNKNOWN, object)
    if found.row is None or not len(found.row):
        return kinds
    events = rank.trace.device_events
    frame, operator = (rows_of(events[name])[found.row].astype(np.int64) for name in ("frame", "operator"))
    for row in issuer_rows():
        around = within_operators(rank, operator, row.operator) | within_library(rank, frame, operator, row.frame)
        kinds[(kinds == _UNKNOWN) & around] = row.kind
    return kinds


def issuer_of_most(case: Case, chosen: Mask, *, least: float, by_time: bool = False) -> str | None:
    """The issuer of at least a share ``least`` of the collectives with chosen nodes, by count or by time."""
    sums: Counter[str] = Counter()
    for rank in case.ranks:
        found = collectives(case, rank)
        own = (found.node >= 0) & chosen[np.maximum(found.node, 0)]
        weight = case.replayed.duration[found.node[own]] if by_time else np.ones(np.count_nonzero(own), np.int64)
        for kind, each in zip(issuers(case, rank, found)[own], weight.tolist(), strict=True):
            sums[kind] += each
    if not sums:
        return None
    kind, most = max(sums.items(), key=lambda item: (item[1], item[0]))
    return kind if kind != _UNKNOWN and most >= least * sum(sums.values()) else None
