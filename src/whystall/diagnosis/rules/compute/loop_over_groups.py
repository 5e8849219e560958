"""Loops that multiply one group of rows after the other, where one grouped product would do: experts, samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.chains import BANDWIDTH_SHARE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import count_per_step, waits_before
from whystall.diagnosis.detectors.kernels import REACHED, durations
from whystall.diagnosis.detectors.limits import least_of_events
from whystall.diagnosis.detectors.loops_over_groups import Least, LoopsOverGroups, loops_over_groups
from whystall.diagnosis.detectors.loops_over_tensors import joined
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_LEAST: Final = Least(
    groups=int(CAUSE.threshold("least_groups")),
    sizes=int(CAUSE.threshold("least_sizes")),
    products=int(CAUSE.threshold("most_products")),
    turns=CAUSE.threshold("turns"),
    own_weights=CAUSE.threshold("own_weights"),
)
_GROUPS_LEFT: Final = CAUSE.threshold("groups_left")
_ITEM_BYTES: Final = (4, 2)
"""Bytes of an element, and of one in 16 bits."""
_PASSES: Final = 2
"""A group's rows are read and written."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """Products with weights of the same sizes for one group after the other, by recorded sizes."""
    for rank in case.ranks:
        found = loops_over_groups(rank, _LEAST) if rank.on_device else None
        if found is None:
            continue
        launched = rank.launched_in(found.begin, found.end)
        left = min(_GROUPS_LEFT * found.loops / found.groups, 1.0)
        times = (found.begin, found.end)
        changes: list[Change] = []
        waits = np.zeros(0, np.bool_)
        for reached in (REACHED, None, 1.0):
            takes = float(_takes_ns(rank, found, launched, reached).sum())
            nodes, host, change = joined(case, rank, launched, times, left=left, takes_ns=takes)
            waits = waits_before(case, host)
            changes.append(replace(change, removed_edges=waits))
        per_step = case.time_of(nodes)
        waited = int(np.count_nonzero(waits)) / max(case.steps, 1)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.count("loops over groups of rows", found.loops / max(len(rank.trace.steps), 1), per=case.per),
                evidence.count("groups in one, on average", found.groups / found.loops),
                evidence.count("kernels in them", count_per_step(case, nodes), per=case.per),
                evidence.time("their device time", per_step, case.events_of(nodes), per=case.per),
                evidence.time("the host's time in them", case.time_of(host), per=case.per),
                *((evidence.count("waits of the host in them", waited, per=case.per),) if waited else ()),
            ),
            removal=changes[0],
            floor=changes[1] if found.apart else Change(),  # a group may need the result of the one before
            ceiling=changes[2],
            method="replay: grouped products at the rate of good kernels, and each group's rows read and written once",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.85,
            rivals=("host.launch-bound", "host.sync", "compute.fusible"),
        )


def _takes_ns(rank: RankCase, found: LoopsOverGroups, launched: Mask, reached: float | None) -> NDArray[np.float64]:
    """Per event of the loops the time that its part of a grouped call takes; ``reached`` is a share of the best rate.

    ``None``: products stay as they are. Calls that do not depend on the group work on whole tensors, once for all.
    """
    work = rank.workings
    duration = np.where(launched, durations(rank), 0.0)
    owner = rows_of(rank.trace.device_events["operator"])
    elements = np.where(owner >= 0, found.elements[np.maximum(owner, 0)], 0)
    products = rows = duration
    if work.peak is not None:
        item = np.where(work.is_half, _ITEM_BYTES[1], _ITEM_BYTES[0])
        speed = BANDWIDTH_SHARE * (work.bytes_per_s or np.inf)
        rows = np.minimum(elements * item * _PASSES / speed * 1e9, duration)
        if reached is not None:
            arithmetic, moves = least_of_events(work, work.peak)
            products = np.minimum(np.maximum(arithmetic / reached, moves), duration)
    whole = np.append(found.whole, False)[owner]
    others = np.where(elements > 0, rows, np.where(whole, duration * found.loops / found.groups, duration))
    return np.where(launched, np.where(work.flops() > 0, products, others), 0.0)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "operators", "shapes")),))
