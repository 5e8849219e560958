"""Recurrent cells that a loop calls for one position of a sequence after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.kernels import REACHED, durations
from whystall.diagnosis.detectors.loops_over_time import LoopsOverTime, loops_over_time
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change

CAUSE: Final = cause_beside(__name__)
_FEWEST: Final = int(CAUSE.threshold("fewest_places"))
_HOST_LEFT: Final = CAUSE.threshold("host_left")
_IN_TURN_LEFT: Final = CAUSE.threshold("in_turn_left")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Loops that call a cell for each position of a sequence and compute nothing else between the calls."""
    for rank in case.ranks:
        found = loops_over_time(rank, fewest=_FEWEST) if rank.on_device else None
        if found is None:
            continue
        inner = case.nodes(rank, device=rank.launched_by(found.inner))
        together = case.nodes(rank, device=rank.launched_by(found.joined | found.gone))
        steps = max(len(rank.trace.steps), 1)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=case.time_of(inner),
            evidence=(
                evidence.count("cells that are called one by one", found.cells / steps, per=case.per),
                evidence.count("kernels for them", count_per_step(case, inner), per=case.per),
                evidence.time("their device time", case.time_of(inner), case.events_of(inner), per=case.per),
                evidence.time("of it in what one call does for all places", case.time_of(together), per=case.per),
            ),
            removal=_as_a_layer(case, rank, found, host_left=_HOST_LEFT, in_turn=1.0),
            # Without gradients, separate networks look the same.
            floor=_as_a_layer(case, rank, found, host_left=1.0, in_turn=1.0) if rank.trains else Change(),
            ceiling=_as_a_layer(case, rank, found, host_left=0.0, in_turn=_IN_TURN_LEFT),
            method="replay: one product of all inputs and one for each weight's gradient, the rest in turn",
            code=code_of(case, inner),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.85,
            rivals=("host.launch-bound", "compute.fusible", "compute.fp32-matmul", "host.sync"),
        )


def _as_a_layer(case: Case, rank: RankCase, found: LoopsOverTime, *, host_left: float, in_turn: float) -> Change:
    """The change to a layer for the whole sequence. Arguments: the shares left of host time, and of work in turn."""
    one_of = found.loops / found.cells
    joined, gone, inner = (rank.launched_by(one) for one in (found.joined, found.gone, found.inner))
    left = np.where(inner, in_turn, 1.0)
    left = np.where(joined, np.maximum(_of_good_products(rank), one_of), left)
    left = np.where(gone, 0.0, left)
    host = case.host_within_operators(rank, found.inner)
    fewer = case.host_within_operators(rank, found.joined | found.gone)
    device = case.nodes(rank, device=inner)
    share = np.where(host, host_left, case.device_values(rank, left, 1.0))
    return case.without(host | device, np.where(fewer, min(host_left, one_of), share))


def _of_good_products(rank: RankCase) -> NDArray[np.float64]:
    """Per device event the share of its time that its arithmetic takes at a good rate of its precision."""
    work = rank.workings
    flops, peak = work.flops(), work.peak
    rate = peak.peak_flops_per_s("fp32") if peak is not None else None
    half = peak.half_tflops if peak is not None else None
    if not rate:
        return np.where(flops > 0, 1.0, 0.0)
    best = np.where(work.is_half, (half or 0) * 1e12 or rate, rate) * REACHED
    share: NDArray[np.float64] = np.minimum(flops / best * 1e9 / np.maximum(durations(rank), 1), 1.0)
    return share


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "operators", "shapes")),))
