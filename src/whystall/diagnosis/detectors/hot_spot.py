"""The costliest operator or kernel where no cause applies, its place in the code, and its limit.

A verdict without a cause still names where the time goes. "Healthy" is claimed only where each expensive operator is
known to be near a limit of the device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMMUNICATION, readable
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.copies import link_bytes_per_s
from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.detectors.limits import least_of_events
from whystall.diagnosis.gains import speedup
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.units import duration
from whystall.diagnosis.weighing import LEAST_SHARE
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import codes, distinct
from whystall.trace.link import rows_of

# An operator is expensive from this share of the busy time on (as of `limits`).
_EXPENSIVE: Final = 0.2
# The limit of an operator is known where it is known for this share of its time.
_KNOWN: Final = 0.5
# Recorded sizes that explain so little of an operator's time are not those of its work.
_MOST_TIMES: Final = 50
# From this share of its time on an operator's copies between host and device are its work. Chosen: all but an event.
_MOSTLY_COPIES: Final = 0.95
_ACROSS: Final = re.compile(r"memcpy (HtoD|DtoH)|CopyHostToDevice|CopyDeviceToHost", re.IGNORECASE)
_LONGEST_NAME: Final = 80
_OPERATOR: Final = re.compile(r"^(?!autograd::|torch::autograd)\w+::\w")
_TEMPLATE: Final = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, slots=True)
class HotSpot:
    """An operator, or a kernel that no operator launched."""

    what: str
    share: float
    """Share of the time in which the device, or without one the training thread's operators, worked."""
    on_device: bool
    times: float | None
    """The ratio of its time to the least time of its arithmetic and bytes; ``None`` where unknown."""
    limit: str
    """The limit, or the reason why it is unknown."""
    place: str
    """Where it is called from, or an empty text."""
    worth: float = 1.0
    """The speed-up, by replay, of a step or of the recording if it took its least time."""
    of: Literal["step", "recording"] = "step"

    def __str__(self) -> str:
        busy = "the device's busy time" if self.on_device else "the time in operators"
        far = self.limit if self.times is None else f"it takes {self.times:.1f} times as long as {self.limit} allows"
        if self.worth >= speedup(LEAST_SHARE):
            far += f", and at that limit the {self.of} would be {self.worth:.2f} times as fast"
        return f"{self.what}{self.place} takes the largest part of {busy} ({self.share:.0%}); {far}."


def hot_spots(case: Case) -> list[HotSpot]:
    """The operators that take most of the busy time, the costliest first: the first one, and all that are expensive."""
    if case.graph is None:
        return []
    ranks = [one for one in case.ranks if one.on_device] or list(case.ranks)
    busiest = max(ranks, key=lambda one: int(_times(case, one).sum()), default=None)
    if busiest is None:
        return []
    time = _times(case, busiest)
    total = float(time.sum())
    if total <= 0:
        return []
    names, name_of = _names(busiest)
    spent = np.bincount(name_of, weights=time, minlength=len(names))
    order = np.argsort(-spent, kind="stable")
    chosen = [one for place, one in enumerate(order.tolist()) if spent[one] >= _EXPENSIVE * total or place == 0]
    spots = [_spot(case, busiest, names[one], name_of == one, spent[one] / total) for one in chosen if spent[one] > 0]
    first = next(iter(spots), None)
    if first is not None and first.times is not None:
        shorter = case.without(case.nodes(busiest, device=name_of == chosen[0]), 1 / first.times)
        spots[0] = replace(first, worth=case.length_ns() / max(case.length_ns(shorter), 1), of=case.per)
    return spots


def _times(case: Case, rank: RankCase) -> NDArray[np.float64]:
    """Per device event, or per operator of a job without a device, its own time in the replayed window."""
    begin, end = case.window_on(rank)
    if rank.on_device:
        start, took = rank.trace.device_events["ts_ns"].to_numpy(), durations(rank)
    else:
        start = rank.trace.operators["ts_ns"].to_numpy()
        took = rank.trace.operators["self_ns"].to_numpy().astype(np.float64)
    return np.where((start >= begin) & (start < end), took, 0.0)


def _names(rank: RankCase) -> tuple[list[str], NDArray[np.int64]]:
    """The name of each device event, or of each operator: its operator's, where one launched it."""
    operators = distinct(rank.trace.operators["name"])
    of_name = codes(rank.trace.operators["name"]).astype(np.int64)
    if not rank.on_device:
        return operators, of_name
    events = rank.trace.device_events
    # Kernels that are printed alike are one: they differ in what their template is given.
    places: dict[str, int] = {}
    place_of = [places.setdefault(short_name(name), len(places)) for name in distinct(events["name"])]
    # A compiled region is no operator: its kernels' names are more specific.
    named = np.array([bool(_OPERATOR.match(name)) for name in operators], np.bool_)
    of_operator = np.append(np.where(named[of_name], of_name, -1) if len(named) else of_name, -1)[
        rows_of(events["operator"])
    ]
    of_kernel = len(operators) + np.array(place_of, np.int64)[codes(events["name"])]
    return [*operators, *places], np.where(of_operator >= 0, of_operator, of_kernel)


def short_name(kernel: str) -> str:
    """A kernel's name without its result, template arguments and parameters.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, float)")
    'at::native::vectorized_elementwise_kernel'
    """
    name = readable(kernel)
    while (shorter := _TEMPLATE.sub("", name)) != name:
        name = shorter
    name = name.replace("(anonymous namespace)::", "").partition("(")[0].strip()
    return (name.rpartition(" ")[2] or kernel)[:_LONGEST_NAME]


def _spot(case: Case, rank: RankCase, name: str, chosen: Mask, share: float) -> HotSpot:
    nodes = case.nodes(rank, device=chosen) if rank.on_device else case.work_of(rank, chosen)
    lines = code_of(case, nodes).lines
    place = f", called at {lines[0].file}:{lines[0].line}" if lines and lines[0].line is not None else ""
    if not rank.on_device:
        return HotSpot(name, share, False, None, "how far a CPU is from its limits is not known", place)
    times, limit = _limit(rank, chosen)
    return HotSpot(name, share, True, times, limit, place)


def _limit(rank: RankCase, chosen: Mask) -> tuple[float | None, str]:
    """How many times its least an operator takes, and which limit that is; else ``None`` and why it is not known."""
    work = rank.workings
    if (work.classified.class_of[chosen] == COMMUNICATION).all():
        return None, "it is communication, whose time depends on the other ranks and the links between them"
    if (between := _crosses_the_link(rank, chosen)) is not None:
        return between, "the peak of the link to the host"
    if work.peak is None:
        return None, "its distance from the limit is unknown, since the device's peaks are unknown"
    if not rank.analysis.signals.get("shapes"):
        # Only a recording of torch's own profiler has operators, and that option.
        how = " (record_shapes=True)" if rank.trace.metadata.may_be_pytorch and len(rank.trace.operators) else ""
        return None, f"its distance from the limit is unknown without shapes{how}"
    products, moves = least_of_events(work, work.peak, on_paper=True)
    least = np.maximum(products, moves)
    owner = np.maximum(work.events.owner, 0)
    owned = work.events.owner >= 0
    call_ns = np.bincount(owner[owned], weights=durations(rank)[owned], minlength=int(owner.max(initial=0)) + 1)
    known = chosen & work.events.main & (least > 0)
    taken, needed = float(call_ns[owner[known]].sum()), float(least[known].sum())
    if needed * _MOST_TIMES <= taken or taken < _KNOWN * float(durations(rank)[chosen].sum()):
        lacks = "whystall has no formula for its work"
        if needed > 0:
            lacks = "the recorded sizes explain almost none of it"
        elif work.peak.memory_gb_per_s is None:
            lacks = f"the bandwidth of {work.peak.name} is unknown"
        return None, f"its distance from the limit is unknown: {lacks}"
    bandwidth = float(moves[known].sum()) > float(products[known].sum())
    return max(taken / needed, 1.0), "the memory's bandwidth" if bandwidth else "its arithmetic at the device's peak"


def _crosses_the_link(rank: RankCase, chosen: Mask) -> float | None:
    """How many times as long as at the link's peak copies between host and device take; ``None`` for anything else."""
    took = durations(rank)
    copies = chosen & rank.device_named(lambda name: bool(_ACROSS.search(name)))
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()
    link, spent = link_bytes_per_s(rank), float(took[copies].sum())
    least = 0.0 if link is None else float(size[copies].sum()) / link * 1e9
    # Copies that beat the table's link have another one.
    return spent / least if spent >= _MOSTLY_COPIES * took[chosen].sum() and 0 < least <= spent else None


def biggest_gap(case: Case) -> str:
    """The longest stretch in which the busiest device runs nothing, as a sentence; an empty text where it is short."""
    if case.graph is None:
        return ""
    graph = case.replayed
    begin, end = case.replayed_window
    found: list[tuple[int, str]] = []
    for rank, rows in case.device_rows:
        reached = np.maximum.accumulate(graph.start[rows] + graph.duration[rows])
        gap = np.append(0, np.minimum(graph.start[rows][1:], end) - np.maximum(reached[:-1], begin))
        at = int(np.argmax(gap))
        if gap[at] > 0:
            name = short_name(case.name_of(rank, int(rows[at])))
            found.append((int(gap[at]), f"The longest gap, {duration(int(gap[at]))}, ends with {name}."))
    longest, sentence = max(found, default=(0, ""))
    return sentence if longest >= _EXPENSIVE * (end - begin) else ""
