"""Large collectives that move far less than any link should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.circumstances import circumstances
from whystall.diagnosis.detectors.collectives import (
    POINT_TO_POINT,
    Collectives,
    are,
    collectives,
    met_by_all,
    spent_ns,
    transfer_ns,
)
from whystall.diagnosis.detectors.messages import latency_ns, shorten, small_bytes
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change, Mask
from whystall.vocabulary.collectives import convention, kind_named

CAUSE: Final = cause_beside(__name__)
# A trace does not state whether its ranks share a machine; a rate far below even one network card is slow in any case.
_NETWORK_BYTES_PER_S: Final = CAUSE.threshold("network_bytes_per_s")
_SLOW_NETWORK_BYTES_PER_S: Final = CAUSE.threshold("slow_network_bytes_per_s")
_PCIE_BYTES_PER_S: Final = CAUSE.threshold("pcie_bytes_per_s")
_ETHERNET_BYTES_PER_S: Final = CAUSE.threshold("ethernet_bytes_per_s")
_SLOWEST_ETHERNET_BYTES_PER_S: Final = CAUSE.threshold("slowest_ethernet_bytes_per_s")
_LOW: Final = CAUSE.threshold("low")
_USUAL_LATENCY_NS: Final = int(CAUSE.threshold("usual_latency_ns"))
_REACHED: Final = CAUSE.threshold("reached")
# Share of the time in slow collectives; in a long recording of many ranks only the first collectives are known of all.
_MOST_UNSURE: Final = 0.5
_SHARES: Final = re.compile(r"^_?(all_?gather|reduce_?scatter)", re.IGNORECASE)
_SUMS: Final = re.compile(r"reduce", re.IGNORECASE)
_OF_32_BITS: Final = frozenset({"float", "float32", "f32"})
_MOSTLY: Final = CAUSE.threshold("mostly")
_FEWEST_SIZED: Final = CAUSE.threshold("fewest_sized")
_SEVERAL_SIZES: Final = CAUSE.threshold("several_sizes")
_ALIKE: Final = CAUSE.threshold("alike")


_BETWEEN_HOSTS: Final = Remedy(
    text="Look at which network gloo takes (GLOO_SOCKET_IFNAME), and what it moves between these hosts by itself "
    "(whystall probe comm under torchrun). Or send less: fewer steps that reduce gradients (accumulation with "
    "no_sync()), gradients as bf16 (torch.distributed.algorithms.ddp_comm_hooks).",
    patch=None,
    risk="Accumulation makes the batch larger; bf16 gradients are rounded.",
)


@dataclass(slots=True)
class _Slow:
    """Slow collectives.

    Their nodes, those that may wait for an unrecorded rank, their rates, and faster durations.
    """

    nodes: Mask
    unsure: Mask
    rates: list[float]
    expected: NDArray[np.float64]
    least: NDArray[np.float64]
    best: NDArray[np.float64]
    halved: bool = False
    """Whether most of their time moves sums of 32-bit numbers, which 16 bits would halve."""
    of_shares: bool = False
    """Whether some of them gather or scatter shares: parameters are shared over the slow link."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """Collectives of known size, against the link of the device or a network card."""
    duration = case.replayed.duration.astype(np.float64)
    nothing = np.zeros(len(duration), np.bool_)
    slow = _Slow(nothing, nothing.copy(), [], duration, duration.copy(), duration.copy())
    latency, beside = latency_ns(case) or 0, _are_on_one_machine(case)
    for rank in case.ranks:
        _add(case, rank, latency, slow, beside=beside)
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
        method="replay: half of the bytes of 32-bit sums at the measured rate (at most: all at the link's bandwidth)"
        if slow.halved
        else "replay: the same bytes at 70 % of the link's bandwidth (at the least: of a network card's, or of PCIe)"
        if any(rank.on_device for rank in case.ranks)
        else "replay: the same bytes at 70 % of 10 Gb/s (at the least: of 1 Gb/s)",
        ranks=tuple(rank.rank for rank in case.ranks),
        remedy=_remedy(case, slow),
        confidence=0.85,
        # A recording does not show the link in use, and no change of the program brings another one: needless or
        # frequent sends of the program go first.
        tier=1,
        rivals=("communication.exposed", "communication.straggler", "communication.small-messages"),
    )
    unsure = spent_ns(case, slow.nodes & slow.unsure) > _MOST_UNSURE * per_step
    yield _of_some_ranks(found) if unsure else found


def _remedy(case: Case, slow: _Slow) -> Remedy | None:
    if not any(rank.on_device for rank in case.ranks):
        return _BETWEEN_HOSTS
    if not slow.halved:
        return None
    if "when_sharded" not in circumstances(case):
        return CAUSE.remedies["smaller"]
    return CAUSE.remedies["smaller_when_sharded" if slow.of_shares else "smaller_of_replicas"]


def _of_some_ranks(found: Replayed) -> Replayed:
    return replace(
        found,
        confidence=0.5,
        nameless=True,
        missing=("traces of the other ranks",),
        if_hidden="large collectives take long: over a slow link, or because a rank that was not recorded comes late; "
        "NCCL_DEBUG=INFO names the link (sockets, or InfiniBand), a recording of all ranks the late one",
    )


def _add(case: Case, rank: RankCase, latency: int, slow: _Slow, *, beside: bool) -> None:
    """Adds a rank's slow collectives; ``beside``: whether the ranks may share a machine."""
    found = collectives(case, rank)
    link, network = _links(rank, beside=beside)
    small = small_bytes(rank)
    sized = (found.size > 0) & (found.ranks > 1) & (found.node >= 0) & ~are(found, POINT_TO_POINT)
    rows = np.flatnonzero(sized)
    at = found.node[rows]
    wire = found.size[rows] * _bus_factor(found, rows)
    took = transfer_ns(case)[at]
    if not rank.on_device:
        took = _shortest_of_a_size(took, found.size[rows])
    rate = wire / np.maximum(took - latency, 1) * 1e9
    low = (found.size[rows] >= small) & (rate < _LOW * network)
    if not low.any():
        return
    slow.nodes[at[low]] = True
    slow.of_shares |= bool((are(found, _SHARES)[rows] & low).any())
    slow.rates += rate[low].tolist()
    if not _last_by_their_bytes(rate[low], found.size[rows][low]):
        slow.unsure[at[low & ~met_by_all(case, rank, found)[rows]]] = True
    # A small one takes the same way: over a good link its latency is that of a good link, too.
    usual = min(latency, _USUAL_LATENCY_NS)
    everything = np.ones(len(rows), np.bool_)
    due = [
        (slow.expected, low | (found.size[rows] < small), usual + wire / (_REACHED * link) * 1e9),
        (slow.least, low, latency + wire / (_REACHED * network) * 1e9),
        (slow.best, everything, usual + wire / link * 1e9),
    ]
    sums = are(found, _SUMS)[rows] & np.array([one.lower() in _OF_32_BITS for one in found.dtype])[rows] & low
    # No change of the program brings another link, but it may send less.
    if rank.on_device and took[sums].sum() > _MOSTLY * took[low].sum():
        slow.halved = True
        due[:2] = [(slow.expected, sums, took / 2), (slow.least, sums, np.maximum(took / 2, due[1][2]))]
    for out, which, takes_ns in due:
        shorten(case, out, at[which], takes_ns[which])


def _last_by_their_bytes(rate: NDArray[np.float64], size: NDArray[np.int64]) -> bool:
    """Whether large collectives of several sizes take time in proportion to their bytes: none of them waited.

    A late rank delays each collective by the time that it is late, not in proportion to the message.
    """
    if len(rate) < _FEWEST_SIZED or size.max() < _SEVERAL_SIZES * size.min():
        return False
    low, middle, high = np.quantile(rate, (0.05, 0.5, 0.95))
    return bool(high - low <= _ALIKE * middle)


def _shortest_of_a_size(took: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """The duration of the fastest of each size: on a host any may have waited for a core, over a link none."""
    _, of_size = np.unique(size, return_inverse=True)
    shortest = np.full(of_size.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(shortest, of_size, took)
    return shortest[of_size]


def _are_on_one_machine(case: Case) -> bool:
    """Whether the recorded ranks may share a machine: no two of them use the device of one number.

    Ranks on several machines do, and so do those of which each sees its own device alone: their link is unknown.
    """
    used = [
        device
        for rank in case.ranks
        for device in rank.trace.device_events["device"].drop_nulls().unique().to_list()
        if device >= 0
    ]
    return len(used) == len(set(used))


def _links(rank: RankCase, *, beside: bool) -> tuple[float, float]:
    """The rate of a rank's link at best, and the least of any link, in bytes per second.

    ``beside``: whether the ranks may share a machine; else the network between machines is their link.
    """
    if not rank.on_device:
        return _ETHERNET_BYTES_PER_S, _SLOWEST_ETHERNET_BYTES_PER_S
    # A device without a link of its own sends over PCIe, often through the host's memory; so may an unknown one.
    peak = rank.workings.peak
    link = peak.link_gb_per_s * 1e9 if peak is not None and peak.link_gb_per_s else _PCIE_BYTES_PER_S
    if not beside:
        return min(_NETWORK_BYTES_PER_S, link), min(_SLOW_NETWORK_BYTES_PER_S, link)
    return link, min(_NETWORK_BYTES_PER_S, link)


def _bus_factor(found: Collectives, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """Bytes on the wire per byte of the message; of a kind that nothing is known of, those of a ring that gathers."""
    return np.array([_factor(found.kind[row], int(found.ranks[row])) for row in rows], np.float64)


def _factor(name: str | None, ranks: int) -> float:
    known = convention(kind_named(name or "") or "all_gather").bus_factor(max(ranks, 1))
    return (max(ranks, 1) - 1) / max(ranks, 1) if known is None else known


RULE = Rule(CAUSE, (Finder(in_trace, ("trace",)),))
