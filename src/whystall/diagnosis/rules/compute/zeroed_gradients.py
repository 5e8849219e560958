"""Gradients that are filled with zeros, and read again in the backward pass, where dropping them costs neither."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import without_gaps
from whystall.diagnosis.detectors.kernels import prompt
from whystall.diagnosis.detectors.stretches import work_within
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask, Times
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.autograd import ACCUMULATE

CAUSE: Final = cause_beside(__name__)
_LEFT_NS: Final = CAUSE.threshold("left_ns")
# torch's mark, "Optimizer.zero_grad#SGD.zero_grad", and the operators that accumulate gradients.
_MARK: Final = re.compile(r"^Optimizer\.zero_grad#")
_FILL: Final = re.compile(r"^aten::(_foreach_)?zero_$")


@dataclass(frozen=True, slots=True)
class _Filled:
    """When gradients were filled, and which operators fill them and add to them afterwards."""

    begin: Times
    end: Times
    fills: Mask
    adds: Mask
    one_by_one: bool


def in_trace(case: Case) -> Iterator[Replayed]:
    """Operators that fill gradients one by one, or all at once, where torch marks that they are made zero."""
    for rank in case.ranks:
        found = _filled(rank)
        if found is not None:
            yield _dropped(case, rank, found)


def _filled(rank: RankCase) -> _Filled | None:
    begin, end, thread = rank.intervals(rank.host_named(lambda name: bool(_MARK.match(name)), ("annotations",)))
    table = rank.trace.operators
    if not len(begin) or table.is_empty():
        return None
    at = table["ts_ns"].to_numpy()
    place = np.searchsorted(begin, at, side="right") - 1
    inside = (place >= 0) & (at < end[np.maximum(place, 0)])
    inside &= table["thread"].to_numpy() == thread[np.maximum(place, 0)]
    parent = rows_of(table["parent"])
    # An operator inside another one belongs to that one.
    outermost = (parent < 0) | ~inside[np.maximum(parent, 0)]
    fills = inside & outermost & matching(table["name"], lambda name: bool(_FILL.match(name)))
    each = np.bincount(place[fills], minlength=len(begin))
    filled = each > 0
    if not filled.any():
        return None
    single = fills & matching(table["name"], lambda name: "_foreach_" not in name)
    adds = _added_to(rank, begin, np.bincount(place[single], minlength=len(begin)))
    return _Filled(begin[filled], end[filled], fills, adds, bool(single.any()))


def _added_to(rank: RankCase, begin: Times, tensors: NDArray[np.int64]) -> Mask:
    """The additions to gradients of zeros: the first of each after it was filled, one for each filled tensor.

    Further backward passes before the next fill add to nonzero gradients. A fill of all tensors at once has an unknown
    number of tensors: no addition after it counts.
    """
    table = rank.trace.operators
    parent = rows_of(table["parent"])
    accumulates = matching(table["name"], lambda name: name == ACCUMULATE)
    rows = np.flatnonzero((parent >= 0) & accumulates[np.maximum(parent, 0)])
    rows = rows[matching(table["name"], lambda name: name == "aten::add_")[rows]]
    at = table["ts_ns"].to_numpy()[rows]
    rows, at = rows[np.argsort(at, kind="stable")], np.sort(at)
    out = np.zeros(len(table), np.bool_)
    for first, last, count in zip(begin, np.append(begin[1:], np.iinfo(np.int64).max), tensors, strict=True):
        out[rows[(at >= first) & (at < last)][:count]] = True
    return out


def _dropped(case: Case, rank: RankCase, found: _Filled) -> Replayed:
    graph = case.replayed
    fills = rank.launched_in(found.begin, found.end)
    operator = rows_of(rank.trace.device_events["operator"])
    adds = (operator >= 0) & np.append(found.adds, False)[np.maximum(operator, -1)]
    work = case.nodes(rank, device=fills | adds)
    filling = work_within(case, rank, found.begin, found.end)
    host = filling | case.host_within_operators(rank, found.adds)
    tensors = int(np.count_nonzero(found.fills))
    # A fill of all at once takes the host no longer than dropping each does.
    left = min(_LEFT_NS * tensors / max(int(graph.duration[host].sum()), 1), 1.0) if found.one_by_one else 1.0
    scaled = (graph.duration * left).astype(np.int64)
    taken = work if rank.on_device else host
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=case.time_of(taken),
        evidence=(
            evidence.count("operators that fill gradients, in one zero_grad", tensors / len(found.begin)),
            evidence.time("host time of it", case.time_of(filling), case.events_of(filling), per=case.per),
            evidence.time(
                "additions to gradients of zeros", case.time_of(case.work_of(rank, found.adds)), per=case.per
            ),
        ),
        removal=Change(
            duration=np.where(work, 0, np.where(host, scaled, graph.duration)),
            lag=without_gaps(case, work),
            delay=prompt(case, work),
        ),
        # A gradient with other references is copied instead of added to.
        floor=Change(duration=np.where(case.nodes(rank, device=fills), 0, np.where(filling, scaled, graph.duration))),
        method="replay: gradients dropped, so that the next backward pass adds nothing to them",
        code=code_of(case, filling | case.nodes(rank, device=fills)),
        ranks=(rank.rank,),
        rivals=("host.launch-bound", "compute.unfused-optimizer"),
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators")),))
