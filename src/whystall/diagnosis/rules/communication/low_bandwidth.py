"""Large collectives that move far less than any link should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import (
    POINT_TO_POINT,
    Collectives,
    are,
    collectives,
    met_by_all,
    spent_ns,
    transfer_ns,
)
from whystall.diagnosis.detectors.messages import SMALL_BYTES, latency_ns, shorten
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change, Mask
from whystall.vocabulary.collectives import convention, kind_named

CAUSE: Final = cause_beside(__name__)
# A trace does not say whether its ranks share a machine; what is far below even one network card is slow in any case.
_NETWORK_BYTES_PER_S: Final = CAUSE.threshold("network_bytes_per_s")
_PCIE_BYTES_PER_S: Final = CAUSE.threshold("pcie_bytes_per_s")
_LOW: Final = CAUSE.threshold("low")
_USUAL_LATENCY_NS: Final = int(CAUSE.threshold("usual_latency_ns"))
_REACHED: Final = CAUSE.threshold("reached")


@dataclass(slots=True)
class _Slow:
    """Slow collectives.

    Their nodes, those that may wait for a rank nobody recorded, their rates, and faster durations.
    """

    nodes: Mask
    unsure: Mask
    rates: list[float]
    expected: NDArray[np.float64]
    least: NDArray[np.float64]
    best: NDArray[np.float64]


def in_trace(case: Case) -> Iterator[Replayed]:
    """Collectives of known size, against the link of the device or a network card."""
    duration = case.replayed.duration.astype(np.float64)
    nothing = np.zeros(len(duration), np.bool_)
    slow = _Slow(nothing, nothing.copy(), [], duration, duration.copy(), duration.copy())
    latency = latency_ns(case) or 0
    for rank in case.ranks:
        _add(case, rank, latency, slow)
    if not slow.nodes.any():
        return
    per_step = spent_ns(case, slow.nodes)
    found = Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.bandwidth("bus bandwidth of large collectives, in the median", float(np.median(slow.rates))),
            evidence.time("spent in them", per_step, case.events_of(slow.nodes), per=case.per),
        ),
        removal=Change(duration=slow.expected.astype(np.int64)),
        floor=Change(duration=slow.least.astype(np.int64)),
        ceiling=Change(duration=slow.best.astype(np.int64)),
        method="replay: the same bytes at 70 % of the link's bandwidth (at the least: of a network card's, or of PCIe)",
        ranks=tuple(rank.rank for rank in case.ranks),
        confidence=0.85,
        rivals=("communication.exposed", "communication.straggler", "communication.small-messages"),
    )
    yield _of_some_ranks(found) if slow.unsure.any() else found


def _of_some_ranks(found: Replayed) -> Replayed:
    return replace(
        found,
        confidence=0.5,
        nameless=True,
        missing=("traces of the other ranks",),
        if_hidden="large collectives take long: over a slow link, or because a rank that was not recorded comes late; "
        "record all ranks to tell which",
    )


def _add(case: Case, rank: RankCase, latency: int, slow: _Slow) -> None:
    """Adds a rank's slow collectives."""
    found = collectives(case, rank)
    peak = rank.workings.peak if rank.on_device else None
    # A device without a link of its own sends over PCIe, often through the host's memory; so may one nobody knows.
    link = peak.link_gb_per_s * 1e9 if peak is not None and peak.link_gb_per_s else _PCIE_BYTES_PER_S
    sized = (found.size > 0) & (found.ranks > 1) & (found.node >= 0) & ~are(found, POINT_TO_POINT)
    rows = np.flatnonzero(sized)
    at = found.node[rows]
    wire = found.size[rows] * _bus_factor(found, rows)
    rate = wire / np.maximum(transfer_ns(case)[at] - latency, 1) * 1e9
    low = (found.size[rows] >= SMALL_BYTES) & (rate < _LOW * min(_NETWORK_BYTES_PER_S, link))
    if not low.any():
        return
    slow.nodes[at[low]] = True
    slow.rates += rate[low].tolist()
    slow.unsure[at[low & ~met_by_all(case, found)[rows]]] = True
    # What is small goes the same way: over a good link its latency is that of a good link, too.
    usual = min(latency, _USUAL_LATENCY_NS)
    for out, which, wait, target in (
        (slow.expected, low | (found.size[rows] < SMALL_BYTES), usual, _REACHED * link),
        (slow.least, low, latency, _REACHED * min(_NETWORK_BYTES_PER_S, link)),
        (slow.best, np.ones(len(rows), np.bool_), usual, link),
    ):
        shorten(case, out, at[which], wait + wire[which] / target * 1e9)


def _bus_factor(found: Collectives, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """Bytes on the wire per byte of the message; of a kind that nothing is known of, those of a ring that gathers."""
    return np.array([_factor(found.kind[row], int(found.ranks[row])) for row in rows], np.float64)


def _factor(name: str | None, ranks: int) -> float:
    known = convention(kind_named(name or "") or "all_gather").bus_factor(max(ranks, 1))
    return (max(ranks, 1) - 1) / max(ranks, 1) if known is None else known


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events")),))
