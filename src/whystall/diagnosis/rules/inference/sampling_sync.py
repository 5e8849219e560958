"""Scores that an engine copies to the host, where Python draws the tokens while the device waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.copies import call_nodes, waits_of_copies
from whystall.diagnosis.detectors.host_calls import waits_beside
from whystall.diagnosis.detectors.stretches import long_python
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.steps import is_of_an_engine
from whystall.vocabulary.copies import TO_HOST

CAUSE: Final = cause_beside(__name__)
_LEAST_BYTES: Final = int(CAUSE.threshold("least_bytes"))


def in_trace(case: Case) -> Iterator[Replayed]:
    """Copies to the host that are more than tokens, that an engine waits for, and that Python works on next."""
    for rank in case.ranks:
        if not is_of_an_engine(rank.trace.steps_from):
            continue
        copies = rank.device_named(lambda name: any(way in name for way in TO_HOST))
        copies &= rank.trace.device_events["bytes"].fill_null(0).to_numpy() >= _LEAST_BYTES
        waits = waits_of_copies(case, rank, copies)
        python = long_python(case, rank) & _before_next_launch(case, rank, copies)
        if waits.any() and python.any():
            yield _on_the_device(case, rank, copies, waits, python)


def _before_next_launch(case: Case, rank: RankCase, copies: Mask) -> Mask:
    """The host's nodes between copies, with the waits for them, and the next launch."""
    calls = rank.launches_of(copies)
    _, end, _ = rank.intervals(calls | waits_beside(rank, calls))
    launches = np.sort(rank.launch_time[rank.launch_time >= 0])
    end = end[end < launches.max(initial=-1)]
    return case.host_within(rank, end, launches[np.searchsorted(launches, end, side="right")])


def _on_the_device(case: Case, rank: RankCase, copies: Mask, waits: Mask, python: Mask) -> Replayed:
    graph = case.replayed
    nodes = case.nodes(rank, device=copies)
    gone = nodes | call_nodes(case, rank, copies) | python
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()[graph.event[nodes]]
    copied, worked = case.time_of(nodes), case.time_of(python)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=copied + worked,
        evidence=(
            evidence.time("copies of more than tokens to the host", copied, case.events_of(nodes), per=case.per),
            evidence.size("size of each, on average", int(size.mean()) if len(size) else 0),
            evidence.time("Python between these and the next launch", worked, case.events_of(python), per=case.per),
        ),
        removal=Change(duration=np.where(gone, 0, graph.duration), removed_edges=waits),
        # A token is still read.
        floor=Change(duration=np.where(gone, 0, graph.duration)),
        method="replay: without the copies of scores, the waits for them and the Python that works on them",
        code=code_of(case, python),
        ranks=(rank.rank,),
        uncertainty=0.2,
        rivals=("host.python", "host.sync"),
        if_hidden="scores are copied to the host, but the device is busy meanwhile: leave it",
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")),))
