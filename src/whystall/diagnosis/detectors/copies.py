"""Copies between host and device as rules see them: the calls that ask for them, and who waits."""

from __future__ import annotations

from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.host_calls import waits_beside, waits_within
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask


def call_nodes(case: Case, rank: RankCase, copies: Mask) -> Mask:
    """The nodes of the calls that ask for some copies."""
    return case.nodes(rank, host=rank.launches_of(copies))


def waits_of_copies(case: Case, rank: RankCase, copies: Mask) -> Mask:
    """The edges by which the host waits for copies: in the calls that start them, and in torch's waits after them."""
    calls = rank.launches_of(copies)
    return waits_within(case, rank, calls) | waits_within(case, rank, waits_beside(rank, calls))
