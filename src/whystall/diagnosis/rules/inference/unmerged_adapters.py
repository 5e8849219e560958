"""Low-rank adapters that are computed beside their layers although nothing learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.adapters import adapters
from whystall.diagnosis.detectors.kernels import left_out
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of

CAUSE: Final = cause_beside(__name__)
_FEWEST: Final = int(CAUSE.threshold("fewest"))
_WIDEST: Final = int(CAUSE.threshold("widest"))
_NARROW: Final = CAUSE.threshold("narrow")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Layers whose input goes through two narrow matrices besides, by the sizes of products."""
    for rank in case.ranks:
        found = adapters(rank, widest=_WIDEST, narrow=_NARROW)
        steps = max(len(rank.trace.steps), 1)
        if found is None or len(found.begin) < _FEWEST:
            continue
        host = case.host_within(rank, found.begin, found.end)
        nodes = host
        if rank.on_device:
            nodes = host | case.nodes(rank, device=rank.launched_in(found.begin, found.end))
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.count("adapters", len(found.begin) / steps, per=case.per),
                evidence.count("the widest of their inner dimensions", found.widest),
                evidence.time("spent in them", per_step, case.events_of(nodes), per=case.per),
            ),
            removal=left_out(case, nodes),
            ceiling=left_out(case, nodes | case.host_within(rank, found.called, found.layer)),
            method="replay: without them, as with merged weights",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.15,
            confidence=0.9,
            rivals=("host.launch-bound", "compute.fusible", "host.small-operators"),
        )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators", "shapes")),))
