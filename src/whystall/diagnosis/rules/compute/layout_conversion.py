"""Kernels that only put a tensor into another order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_MOST_PARENTS: Final = 4
_WITHOUT_CONVOLUTIONS: Final = Remedy(
    text="Keep tensors in the order in which they are used: drop .contiguous() where the next operator takes strides, "
    "and transpose the weights once instead of the activations in every step.",
    patch=None,
    risk="An operator that needs contiguous memory makes the copy itself.",
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels named after it, and those of operators that make a tensor contiguous."""
    for rank in case.ranks:
        chosen = (rank.workings.classified.has("layout") | _of_contiguous(rank)) & ~rank.workings.could_use_tensor_cores
        if not chosen.any():
            continue
        convolves = bool((rank.workings.family == "convolution").any())
        nodes = case.nodes(rank, device=chosen)
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("kernels that change a layout", per_step, case.events_of(nodes), per=case.per),
                evidence.count("of them", count_per_step(case, nodes), per=case.per),
            ),
            removal=case.without(nodes),
            method="replay: without these kernels",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            rivals=("compute.fusible",),
            # A memory format is what convolutions have. Elsewhere a copy into another order is a link of a chain first.
            tier=0 if convolves else 2,
            remedy=None if convolves else _WITHOUT_CONVOLUTIONS,
        )


def _of_contiguous(rank: RankCase) -> Mask:
    """Device events of operators that copy a tensor into another order of the same dtype."""
    events = rank.trace.device_events
    names = rank.trace.operators["name"].cast(str).to_list() if len(rank.trace.operators) else []
    parent = rows_of(rank.trace.operators["parent"]) if names else np.zeros(0, np.int32)
    wanted = np.array([name == "aten::contiguous" for name in names], np.bool_)
    out = np.zeros(len(events), np.bool_)
    at = rows_of(events["operator"]).copy()
    for _ in range(_MOST_PARENTS):
        known = at >= 0
        if not known.any() or not len(wanted):
            break
        out |= known & wanted[np.maximum(at, 0)]
        at = np.where(known, parent[np.maximum(at, 0)], -1)
    return out


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events")),))
