"""State that is kept in the host's memory and copied to the device and back in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.copies import call_nodes, waits_of_copies
from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.detectors.offloading import (
    copies_to_device,
    fetched_weights,
    goes_back,
    in_most_steps,
    steps_of,
    work_for,
    written_for,
)
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.vocabulary.copies import TO_HOST

CAUSE: Final = cause_beside(__name__)
_LEAST_BYTES: Final = CAUSE.threshold("least_bytes")
_LEAST_BACK: Final = CAUSE.threshold("least_back")
_SIZES: Final = CAUSE.threshold("sizes")
_MANY_COPIES: Final = CAUSE.threshold("many_copies")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Large copies in both directions in each step of training, or many of weights that are fetched for each use.

    Where nothing learns, and models go back as they came, both directions are for nothing.
    """
    for rank in case.ranks:
        to_device = copies_to_device(rank)
        to_host = rank.device_named(lambda name: any(part in name for part in TO_HOST))
        fetches = fetched_weights(rank, many=_MANY_COPIES, least_bytes=_LEAST_BYTES, sizes=_SIZES)
        both = in_most_steps(rank, to_device, _LEAST_BYTES) and in_most_steps(rank, to_host, _LEAST_BYTES)
        if rank.trains and both:
            yield _kept_on_the_device(case, rank, to_device, to_host, fetched=False)
        elif fetches.any():
            back = both and goes_back(rank, fetches, to_host, least=_LEAST_BACK)
            yield _kept_on_the_device(case, rank, fetches, to_host & back, fetched=True)


def _kept_on_the_device(case: Case, rank: RankCase, to_device: Mask, to_host: Mask, *, fetched: bool) -> Replayed:
    graph = case.replayed
    copies = to_device | to_host
    nodes, calls = case.nodes(rank, device=copies), call_nodes(case, rank, copies)
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()
    seconds = max(float(durations(rank)[copies].sum()) / 1e9, 1e-9)
    moved = fetched and bool(to_host.any())
    # An optimizer on the CPU needs the host's work on state that goes both ways: that stays.
    others = work_for(case, rank, copies) if fetched else np.zeros_like(nodes)
    per_step = case.time_of(nodes)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("copies between host and device", per_step, case.events_of(nodes), per=case.per),
            *(
                evidence.size(where, int(size[chosen].sum()) // steps_of(rank), per=case.per)
                for where, chosen in (("to the device", to_device), ("to the host", to_host))
                if chosen.any()
            ),
            evidence.bandwidth("their bandwidth", float(size[copies].sum()) / seconds),
        ),
        removal=Change(
            duration=np.where(nodes | calls | others, 0, graph.duration),
            removed_edges=waits_of_copies(case, rank, copies),
        ),
        method="replay: without these copies, and without what asks for them"
        if fetched
        else "replay: nothing waits for these copies",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        # The host's work on state stays, and copies that overlap slow others; weights need no work but their copies.
        uncertainty=0.2 if fetched else 0.4,
        confidence=0.75 if fetched else 0.85,
        rivals=("host.pageable-copy", "host.sync"),
        remedy=written_for(rank, CAUSE.remedies["moved" if moved else "fetched"]) if fetched else None,
        detail=(
            "weights are copied to the device and back, unchanged"
            if moved
            else "weights are copied to the device again for each use"
        )
        if fetched
        else "",
        if_hidden="state goes between host and device in every step, and compute hides it: leave it",
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls", "steps")),))
