"""Chains of kernels bound by memory that could be one kernel each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.chains import ChainEvents, chain_events
from whystall.analysis.results import Device
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.elementwise import elementwise_chains
from whystall.diagnosis.detectors.kernels import durations, prompt
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, EdgeKind, Mask
from whystall.trace.columns import matching

CAUSE: Final = cause_beside(__name__)
_LEAST_CHAIN: Final = int(CAUSE.threshold("least_chain"))
_LEAST_BYTES: Final = CAUSE.threshold("least_bytes")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")

# The backward pass of a backward pass, as derivatives.yaml names it (TanhBackwardBackward0).
_SECOND: Final = re.compile(r"BackwardBackward\d*$|DoubleBackward")

_ON_A_CPU: Final = Remedy(
    text="Call the operator that does all of a chain where there is one (F.layer_norm, F.rms_norm, F.gelu, F.silu, "
    "F.softmax, torch.addcmul), or compile the function or the model.",
    patch="model = torch.compile(model)",
    risk="Compilation takes time, and again for every new shape.",
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """The chains of each device, without those of an optimizer, whose loop is another cause."""
    for rank in case.ranks:
        if _differentiated_twice(rank):
            continue
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


def in_trace_of_a_cpu(case: Case) -> Iterator[Replayed]:
    """Chains that take much of a step on a CPU, whose caches do not hold the intermediate results."""
    for rank in case.ranks:
        chains = elementwise_chains(rank, calls=_LEAST_CHAIN, least_bytes=_LEAST_BYTES)
        if chains is None or _differentiated_twice(rank):
            continue
        nodes = case.work_of(rank, chains.most < 1)
        left, least, most = (case.operator_values(rank, each, 1.0) for each in (chains.left, chains.least, chains.most))
        saved = int((case.replayed.duration * (1 - left))[case.in_window(nodes)].sum()) // max(case.steps, 1)
        if saved < _LEAST_SHARE * case.step_ns:
            continue
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=case.time_of(nodes),
            evidence=(
                evidence.time("operators in chains", case.time_of(nodes), case.events_of(nodes), per=case.per),
                evidence.count("chains", chains.count / max(len(rank.trace.steps), 1), per=case.per),
                evidence.text("the costliest", " → ".join(chains.costliest)[:300]),
            ),
            removal=case.without(nodes, left),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: without the bytes of intermediate tensors",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.8,
            tier=1,
            remedy=_ON_A_CPU,
            rivals=("compute.unfused-attention", "host.small-operators"),
        )


def _differentiated_twice(rank: RankCase) -> bool:
    """Whether gradients of gradients are made (penalties, differential equations).

    Code from `torch.compile` refuses that (AOTAutograd: "does not currently support double backward").
    """
    return bool(matching(rank.trace.operators["name"], lambda name: bool(_SECOND.search(name))).any())


def _fused(case: Case, rank: RankCase, device: Device, chains: ChainEvents) -> Replayed:
    graph = case.replayed
    chosen, later = _nodes(case, rank, chains)
    target, careful = durations(rank), durations(rank)
    target[chains.row] *= chains.left
    careful[chains.row] *= chains.left_at_most
    nodes = np.flatnonzero(chosen)
    duration, longer = graph.duration.copy(), graph.duration.copy()
    for times, values in ((duration, target), (longer, careful)):
        times[nodes] = np.minimum(times[nodes], values[graph.event[nodes]])
    lag, edges = graph.lag.copy(), np.flatnonzero(later[graph.target])
    edges = edges[graph.edge_kind[edges] == EdgeKind.STREAM]
    lag[edges] = np.minimum(lag[edges], 0)
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
        removal=Change(duration=duration, lag=lag, delay=prompt(case, later)),
        floor=Change(duration=longer),
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


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "operators")),
        Finder(in_trace_of_a_cpu, ("trace", "operators", "shapes", "no_device")),
    ),
)
