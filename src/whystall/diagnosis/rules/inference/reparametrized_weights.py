"""Weights that are computed from parameters in each call although nothing learns: weight norm, spectral norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import left_out
from whystall.diagnosis.detectors.weights_again import weights_again
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of

CAUSE: Final = cause_beside(__name__)
_FEWEST: Final = int(CAUSE.threshold("fewest"))
_UNSURE: Final = 0.15
_UNSURE_ON_CPU: Final = 0.5
"""There a profiler lengthens small operators most: on two busy cores four small models became 1.2 to 1.9 times as fast,
where recordings with shapes predicted 1.6 to 2.5."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """Weights that hooks compute before the calls of their layers."""
    for rank in case.ranks:
        found = weights_again(rank)
        if found is None or found.count < _FEWEST:
            continue
        nodes = case.host_within(rank, found.begin, found.end)
        if rank.on_device:
            nodes |= case.nodes(rank, device=found.kernels | rank.launched_in(found.begin, found.end))
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.count("weights computed", found.count / max(len(rank.trace.steps), 1), per=case.per),
                evidence.time("spent on them", per_step, case.events_of(nodes), per=case.per),
            ),
            removal=left_out(case, nodes),
            ceiling=left_out(case, nodes | case.host_within(rank, found.called, found.layer)),
            method="replay: without them, as with weights that were computed once",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=_UNSURE if rank.on_device else _UNSURE_ON_CPU,
            confidence=0.9,
            rivals=("host.launch-bound", "compute.fusible", "host.small-operators"),
        )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators")),))
