"""Operators for which a recording shows that another form takes a part of their time."""

from __future__ import annotations

from dataclasses import dataclass

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import Cause
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask


@dataclass(frozen=True, slots=True)
class Wasted:
    """The operators with all they call, and their description.

    ``left`` of their time remains: at least, as expected, at most. ``remedy`` is the name of one of the cause's.
    """

    operators: Mask
    left: tuple[float, float, float]
    what: str
    facts: tuple[Evidence, ...]
    method: str
    detail: str
    remedy: str

    def candidate(self, case: Case, rank: RankCase, cause: Cause) -> Replayed:
        """The candidate under a cause that has its remedy."""
        least, expected, most = self.left
        nodes = case.work_of(rank, self.operators)
        taken = case.time_of(nodes)
        return Replayed(
            cause=cause.id,
            attributed_ns=taken,
            evidence=(*self.facts, evidence.time(self.what, taken, case.events_of(nodes), per=case.per)),
            removal=case.without(nodes, expected),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method=self.method,
            detail=self.detail,
            remedy=cause.remedies[self.remedy],
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.1,
            confidence=0.85,
        )
