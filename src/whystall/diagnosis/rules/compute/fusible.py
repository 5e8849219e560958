"""Chains of kernels bound by memory that could be one kernel each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.chains import ChainEvents, chain_events
from whystall.analysis.results import Device
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import durations, prompt
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change, EdgeKind, Mask

CAUSE: Final = cause_beside(__name__)
_LEAST_CHAIN: Final = int(CAUSE.threshold("least_chain"))


def in_trace(case: Case) -> Iterator[Replayed]:
    """The chains of each device, without those of an optimizer, whose loop is another cause."""
    for rank in case.ranks:
        work = rank.workings
        for device in rank.analysis.devices:
            chains = chain_events(
                rank.trace, device, work.tree, work.work, work.events, work.classified, work.peak, calls=_LEAST_CHAIN
            )
            if chains is None:
                continue
            begin, end, _ = rank.optimizer_steps
            chains = chains.only(~rank.launched_in(begin, end)[chains.row])
            if len(chains.row):
                yield _fused(case, rank, device, chains)


def _fused(case: Case, rank: RankCase, device: Device, chains: ChainEvents) -> Replayed:
    graph = case.replayed
    chosen, later = _nodes(case, rank, chains)
    target, careful = durations(rank), durations(rank)
    target[chains.row] *= chains.left
    careful[chains.row] *= chains.left_at_most
    duration, longer = (
        np.where(chosen, np.minimum(graph.duration, case.device_values(rank, values, np.inf)), graph.duration)
        for values in (target, careful)
    )
    lag = np.where((graph.edge_kind == EdgeKind.STREAM) & later[graph.target], np.minimum(graph.lag, 0), graph.lag)
    per_step = case.time_of(chosen)
    count = int(np.count_nonzero(chains.first)) / max(len(device.steps), 1)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("kernels in chains that could be fused", per_step, case.events_of(chosen), per=case.per),
            evidence.count("chains", count, per=case.per),
            evidence.text("the costliest", " → ".join(chains.costliest)[:300]),
        ),
        removal=Change(duration=duration.astype(np.int64), lag=lag, delay=prompt(case, later)),
        floor=Change(duration=longer.astype(np.int64)),
        method="replay: one kernel for each chain, without its intermediate tensors",
        ranks=(rank.rank,),
        uncertainty=0.2,
        confidence=0.8,
        tier=1,
        rivals=("compute.unfused-attention", "compute.unfused-optimizer", "host.launch-bound"),
    )


def _nodes(case: Case, rank: RankCase, chains: ChainEvents) -> tuple[Mask, Mask]:
    """The nodes of all kernels in chains, and of those that are not the first of theirs."""
    events = np.zeros(len(rank.trace.device_events), np.bool_)
    inner = events.copy()
    events[chains.row] = True
    inner[chains.row[~chains.first]] = True
    return case.nodes(rank, device=events), case.nodes(rank, device=inner)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "operators")),))
