"""The host's part in launching a step's device events: dispatch, calls, and the Python between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from whystall.analysis.host_states import HostState
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.episodes import annotation_around_nodes
from whystall.diagnosis.detectors.stretches import (
    LONG_NS,
    count_of_stretches,
    long_python,
    soft_nodes,
    soft_stretch_ns,
)
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask

CAUSE: Final = cause_beside("whystall.diagnosis.rules.host.launch_bound")
_STREWN: Final = CAUSE.threshold("strewn")
_STANDS_OUT: Final = CAUSE.threshold("stands_out")


@dataclass(frozen=True, slots=True)
class Launching:
    """The host's part of launching on a rank.

    Args:
        work: The host nodes of it.
        each_ns: Their time for one device event.
        strewn: Those of them that are long stretches of Python between launches, and no separate piece of work.
    """

    work: Mask
    each_ns: float
    strewn: Mask


def launching(case: Case, rank: RankCase) -> Launching | None:
    """The host's part of launching; ``None`` on a rank that launched nothing on a device."""
    key = ("launching", rank.rank)
    if key not in case.kept:
        case.kept[key] = _launching(case, rank)
    found: Launching | None = case.kept[key]
    return found


def median_kernel_ns(rank: RankCase, device: int) -> int:
    """The median length of a device's kernels, 0 without any."""
    events = rank.trace.device_events
    own = events.filter((events["device"] == device) & (events["kind"] == "kernel"))
    return int(own["duration_ns"].median() or 0)  # type: ignore[arg-type]


def _launching(case: Case, rank: RankCase) -> Launching | None:
    devices = [device for device in rank.analysis.devices if device.kind != "cpu" and device.gpu_events]
    if not devices:
        return None
    soft = soft_nodes(case, rank)
    work = case.host_state(rank, HostState.DISPATCH, HostState.LAUNCH) & ~soft
    work |= soft & (soft_stretch_ns(case, rank) < LONG_NS)
    work &= ~case.startup  # happens once
    events = max(sum(device.gpu_events / max(len(device.steps), 1) for device in devices), 1)
    strewn = _strewn(case, rank)
    each_ns = case.time_of(work | strewn) / events
    # A device whose usual kernel is longer does not wait for each launch: long Python is then what holds it up.
    if all(median_kernel_ns(rank, device.device) > each_ns for device in devices):
        strewn = strewn & False
    return Launching(work | strewn, case.time_of(work | strewn) / events, strewn)


def _strewn(case: Case, rank: RankCase) -> Mask:
    """Long Python in many stretches of a step, none of which stands out; none where stacks or annotations name it."""
    nodes = long_python(case, rank)
    nothing = nodes & False
    if rank.analysis.signals.get("python_stacks") or not nodes.any():
        return nothing
    lasts = soft_stretch_ns(case, rank)
    alike = nodes & (lasts <= _STANDS_OUT * np.median(lasts[nodes]))
    if count_of_stretches(case, rank, alike) < _STREWN:
        return nothing
    return nothing if annotation_around_nodes(case, rank, alike) is not None else alike
