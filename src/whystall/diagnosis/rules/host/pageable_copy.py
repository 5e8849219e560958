"""Copies from pageable memory to the device, which block the host and are slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.copies import call_nodes, link_bytes_per_s, waits_of_copies
from whystall.diagnosis.detectors.offloading import fetched_weights, written_for
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask

CAUSE: Final = cause_beside(__name__)
# By the device's compute capability, the lowest where that is not known.
_PINNED_BYTES_PER_S: Final = (
    (9, CAUSE.threshold("pcie5_bytes_per_s")),
    (8, CAUSE.threshold("pcie4_bytes_per_s")),
    (0, CAUSE.threshold("pcie3_bytes_per_s")),
)
_SIZES: Final = CAUSE.threshold("sizes")
_MANY_COPIES: Final = CAUSE.threshold("many_copies")
_LEAST_BYTES: Final = CAUSE.threshold("least_bytes")
_PINNED_CALL_NS: Final = int(CAUSE.threshold("pinned_call_ns"))


def in_trace(case: Case) -> Iterator[Replayed]:
    """Copies whose names say that the memory is pageable."""
    for rank in case.ranks:
        copies = rank.device_named(lambda name: "HtoD" in name and "ageable" in name)
        if copies.any():
            yield _from_pinned_memory(case, rank, copies)


def _from_pinned_memory(case: Case, rank: RankCase, copies: Mask) -> Replayed:
    graph = case.replayed
    nodes = case.nodes(rank, device=copies)
    calls = call_nodes(case, rank, copies)
    waits = waits_of_copies(case, rank, copies)
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()[graph.event[nodes]]
    duration = graph.duration.copy()
    duration[nodes] = np.minimum(duration[nodes], (size / pinned_bytes_per_s(rank) * 1e9).astype(np.int64))
    duration[calls] = np.minimum(duration[calls], _PINNED_CALL_NS)
    # Compute hides no more time of copies than it takes itself.
    link = link_bytes_per_s(rank)
    least_ns = np.zeros(len(size)) if link is None else size / link * 1e9
    computes_ns = int(graph.duration[case.nodes(rank, device=rank.workings.classified.class_of == COMPUTE)].sum())
    best = duration.copy()
    best[nodes] = np.minimum(best[nodes], least_ns * max(1 - computes_ns / max(least_ns.sum(), 1.0), 0.0))
    per_step = case.time_of(nodes)
    speed = int(size.sum()) / max(int(graph.duration[nodes].sum()), 1) * 1e9
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("copies from pageable memory", per_step, case.events_of(nodes), per=case.per),
            evidence.bandwidth("their bandwidth", speed),
        ),
        removal=Change(duration=duration, removed_edges=waits),
        ceiling=Change(duration=best, removed_edges=waits),
        method="replay: copies at the speed of pinned memory, without blocking the host (at most: at the link's, "
        "beside compute)",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        remedy=written_for(rank, CAUSE.remedies["weights"]) if _are_weights(rank, copies) else None,
        uncertainty=0.25,
        rivals=("host.sync", "input.synchronous-loader"),
        if_hidden="copies come from pageable memory, but nothing waits for them: leave it",
    )


def _are_weights(rank: RankCase, copies: Mask) -> bool:
    """Whether most of the bytes are weights that are fetched again and again: no loader makes them."""
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()
    weights = fetched_weights(rank, many=_MANY_COPIES, least_bytes=_LEAST_BYTES, sizes=_SIZES)
    return bool(2 * size[copies & weights].sum() > size[copies].sum())


def pinned_bytes_per_s(rank: RankCase) -> float:
    """Rate of copies from pinned memory on a rank's machine, in bytes per second."""
    majors = [device.compute_capability[0] for device in rank.trace.metadata.devices if device.compute_capability]
    major = max(min(majors, default=0), 0)  # a damaged trace may say less
    return next(rate for least, rate in _PINNED_BYTES_PER_S if major >= least)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")),))
