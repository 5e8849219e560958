"""Collectives as messages: the latency of the smallest, steps that communicate more than others, and shorter ones."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import collectives, transfer_ns
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.transfers import scale_leaving

SMALL_BYTES: Final = 1 << 20
"""Below this a message between devices mostly costs its latency."""
_SMALL_ON_HOST: Final = 1 << 17  # a network card of 1 Gb/s moves this in a millisecond
_LONGEST_LATENCY_NS: Final = 500_000
_LONGEST_BETWEEN_DEVICES_NS: Final = 100_000  # chosen: nccl-tests shows 10 to 40 us between 2 and 16 devices
_FEWEST_STEPS: Final = 4
_LOUD: Final = 1.5
_MOST_LOUD: Final = 20


def small_bytes(rank: RankCase) -> int:
    """Below this a message of a rank mostly costs its latency."""
    return SMALL_BYTES if rank.on_device else _SMALL_ON_HOST


def latency_ns(case: Case) -> int | None:
    """The median duration of the smallest collectives, their latency, in ns; ``None`` where none is small.

    Without sizes: the median duration of all, if that is short.
    """
    transfer = transfer_ns(case)
    found: list[int] = []
    unsized: list[int] = []
    for rank in case.ranks:
        own = collectives(case, rank)
        nodes = own.node
        known = nodes >= 0
        unsized += transfer[nodes[known & (own.size < 0)]].tolist()
        small = (own.size >= 0) & (own.size < small_bytes(rank)) & known
        if small.any():
            tiny = small & (own.size <= np.quantile(own.size[small], 0.25))
            found += transfer[nodes[tiny]].tolist()
    if found:
        return int(np.median(found))
    usual = int(np.median(unsized)) if unsized else 0
    on_device = any(rank.on_device for rank in case.ranks)
    longest = _LONGEST_BETWEEN_DEVICES_NS if on_device else _LONGEST_LATENCY_NS
    return usual if 0 < usual <= longest else None


def loud_steps(case: Case) -> tuple[tuple[str, ...], tuple[Evidence, ...]]:
    """Steps that communicate for much longer than the median step does."""
    found: dict[str, float] = {}
    for rank in case.ranks:
        for device in rank.analysis.devices:
            times = [step.communication_ns for step in device.steps]
            usual = float(np.median(times)) if len(times) >= _FEWEST_STEPS else 0.0
            loud = [step for step in device.steps if usual > 0 and step.communication_ns > _LOUD * usual]
            for step in loud:
                found[step.name] = max(found.get(step.name, 0.0), step.communication_ns / usual)
    names = sorted(found, key=lambda name: (-found[name], name))[:_MOST_LOUD]
    return tuple(names), tuple(
        evidence.count(f"times the median step's communication in {name}", found[name]) for name in names[:1]
    )


def shorten(
    case: Case, duration: NDArray[np.float64], nodes: NDArray[np.int64], target_ns: NDArray[np.float64]
) -> None:
    """Gives collectives (or their transfers) a new length, where that is shorter."""
    transfer = case.transfer_of[nodes]
    at = np.where(transfer >= 0, transfer, nodes)
    duration[at] = np.minimum(duration[at], target_ns)
    scale_leaving(case.replayed, case.leaving, duration)
