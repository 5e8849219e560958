"""Frozen networks, such as encoders of pictures and texts, that run again in each step of a training job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.frozen import frozen_passes
from whystall.diagnosis.detectors.kernels import left_out
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change

CAUSE: Final = cause_beside(__name__)
_LEAST_LAYERS: Final = int(CAUSE.threshold("least_layers"))
_FOREIGN: Final = CAUSE.threshold("foreign")
_FLAT: Final = CAUSE.threshold("flat")
_USUAL: Final = CAUSE.threshold("usual")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Passes without autograd through layers that the network which learns does not have."""
    for rank in case.ranks:
        found = frozen_passes(rank, least_layers=_LEAST_LAYERS, foreign=_FOREIGN, flat=_FLAT)
        if found is None:
            continue
        nodes = host = case.host_within(rank, found.begin, found.end)
        if rank.on_device:
            nodes = case.nodes(rank, device=rank.launched_in(found.begin, found.end))
        per_step = case.time_of(nodes)
        if case.usual_ns(rank, nodes) < _USUAL * per_step:
            continue
        steps = max(len(rank.trace.steps), 1)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("forward passes that nothing learns from", per_step, case.events_of(nodes), per=case.per),
                evidence.count("their layers", found.layers / steps, per=case.per),
            ),
            removal=left_out(case, nodes | host),
            # Only what comes back unchanged can be kept, and a recording does not show whether inputs come back.
            floor=Change(),
            method="replay: without these passes, as with their results kept for each sample",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.1,
            confidence=0.7,
            rivals=("compute.fusible", "host.launch-bound"),
        )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators", "shapes")),))
