"""Workers that together make fewer batches than are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import starved
from whystall.diagnosis.detectors.loader import LEFT_OF_FETCH, fetches_from_workers, waiting_nodes
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Fetches from workers that the training thread waits for in most steps."""
    for rank in case.ranks:
        found = fetches_from_workers(case, rank)
        if found is None:
            continue
        begin, end, spikes = found
        usual = ~spikes
        if not np.count_nonzero(usual) or (end - begin)[usual].sum() <= 0:
            continue
        nodes = waiting_nodes(case, rank, begin[usual], end[usual])
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("waiting for the loader's workers", per_step, case.events_of(nodes), per=case.per),
                evidence.share(f"of the {case.per}", per_step / max(case.step_ns, 1)),
            ),
            removal=case.without(nodes, LEFT_OF_FETCH),
            ceiling=case.without(nodes),
            method="replay: batches ready when they are asked for",
            ranks=(rank.rank,),
            uncertainty=0.1,
            confidence=0.85,
            rivals=("input.synchronous-loader", "host.python", "host.sync"),
            missing=() if case.runs else ("the workers' CPU time (samples of a watched run)",),
            if_hidden="the training thread waits for its loader, but the device has work queued meanwhile: leave it",
        )


def in_samples(case: Case) -> Iterator[Sampled]:
    """Waits for workers that neither lack cores nor wait for storage, as far as is known."""
    yield from starved(case, "input.too-few-workers")


RULE = Rule(CAUSE, (Finder(in_trace, ("trace",)), Finder(in_samples, ("samples", "no_device"))))
