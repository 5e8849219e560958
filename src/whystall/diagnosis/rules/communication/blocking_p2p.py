"""Messages between two ranks on the stream that computes: the kernels behind them wait, needed or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import POINT_TO_POINT, Collectives, are, collectives
from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Mask

CAUSE: Final = cause_beside(__name__)
_COMPUTES: Final = CAUSE.threshold("computes")
_SENDS: Final = re.compile(r"^send$|^isend$")
_RECEIVES: Final = re.compile(r"^recv$|^irecv$")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Sends, and messages that may be sends, on a stream on which a good part of the compute runs."""
    for rank in case.ranks:
        found = collectives(case, rank)
        if found.row is None:
            continue
        blocking = are(found, POINT_TO_POINT) & _among_compute(rank)[found.row]
        # Received data is needed; sent data is not. One kernel may do both.
        movable = blocking & ~are(found, _RECEIVES)
        if movable.any():
            yield _beside_compute(case, rank, found, blocking, movable)


def _among_compute(rank: RankCase) -> Mask:
    """Which device events run on a stream that does a good part of its device's compute."""
    events = rank.trace.device_events
    computes = rank.workings.classified.class_of == COMPUTE
    length = durations(rank)
    device, stream = events["device"].to_numpy(), events["stream"].to_numpy()
    out = np.zeros(len(length), np.bool_)
    for number in np.unique(device[computes]).tolist():
        whole = length[computes & (device == number)].sum()
        for one in np.unique(stream[computes & (device == number)]).tolist():
            mine = (device == number) & (stream == one)
            out |= mine & bool(length[mine & computes].sum() >= _COMPUTES * whole)
    return out


def _beside_compute(case: Case, rank: RankCase, found: Collectives, blocking: Mask, movable: Mask) -> Replayed:
    nodes, moved = found.nodes(case, blocking), found.nodes(case, movable)
    sent = found.nodes(case, movable & are(found, _SENDS))
    # Half of a kernel that sends and receives may be the part that no recorded rank waits for.
    factor = np.where(sent, 0.0, 0.5)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=case.time_of(nodes),
        evidence=(
            evidence.time(
                "messages on the stream that computes", case.time_of(nodes), case.events_of(nodes), per=case.per
            ),
            evidence.share("of them that only send", int(sent.sum()) / max(int(nodes.sum()), 1)),
        ),
        removal=case.without(case.with_transfers(moved), factor),
        ceiling=case.without(case.with_transfers(moved)),
        method="replay: what is sent goes beside compute",
        ranks=(rank.rank,),
        uncertainty=0.5,
        confidence=0.75,
        rivals=("communication.exposed", "pipeline.bubble"),
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events")),))
