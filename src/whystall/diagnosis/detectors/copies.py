"""Copies between host and device as rules see them: the calls that ask for them, and who waits."""

from __future__ import annotations

from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.host_calls import waits_beside, waits_within
from whystall.diagnosis.rank_case import RankCase
from whystall.hardware.host_link import host_link_bytes_per_s
from whystall.replay.graph import Mask


def call_nodes(case: Case, rank: RankCase, copies: Mask) -> Mask:
    """The nodes of the calls that ask for some copies."""
    return case.nodes(rank, host=rank.launches_of(copies))


def waits_of_copies(case: Case, rank: RankCase, copies: Mask) -> Mask:
    """The edges by which the host waits for copies: in the calls that start them, and in torch's waits after them."""
    calls = rank.launches_of(copies)
    return waits_within(case, rank, calls) | waits_within(case, rank, waits_beside(rank, calls))


def link_bytes_per_s(rank: RankCase) -> float | None:
    """The peak of the link between a rank's device and its host, in bytes a second; of several devices the fastest.

    ``None`` where a device is not known.
    """
    devices = rank.trace.metadata.devices
    rates = [host_link_bytes_per_s(one.name or "", one.compute_capability) for one in devices]
    known = [rate for rate in rates if rate is not None]
    return max(known) if known and len(known) == len(rates) else None
