"""Which few of many ranks are looked at in depth, and why: those that say most of the whole job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whystall.analysis.results import Device
from whystall.analysis.steadiness import mean_step, steady
from whystall.fleet.gatherings import Gatherings, Late
from whystall.fleet.summary import Candidate

MOST_CHOSEN: Final = 8
_MOST_LATE: Final = 2
# A rank that is late by less than this share of what the latest is late by is not looked at for that.
_ALSO_LATE: Final = 0.25
_MESSAGES: Final = frozenset({"send", "recv", "send_recv", "sendrecv"})


@dataclass(frozen=True, slots=True)
class Chosen:
    """A rank that is looked at in depth, and why."""

    rank: int
    why: str


def chosen_ranks(candidates: Sequence[Candidate], found: Gatherings, most: int = MOST_CHOSEN) -> list[Chosen]:
    """At most ``most`` ranks by number: late ones, one that waits, the slowest, one of each stage, the rest spread."""
    whole = [one for one in candidates if not one.summary.truncated and one.devices]
    able = whole or [one for one in candidates if one.devices] or list(candidates)
    known = {one.rank for one in able}
    wanted = [*_late(found, known), *_slowest(able), *_stages(able, [late.rank for late in found.late()])]
    chosen: dict[int, str] = {}
    for one in wanted:
        if len(chosen) < most and one.rank in known:
            chosen.setdefault(one.rank, one.why)
    for rank in _spread(sorted(known - set(chosen)), most - len(chosen)):
        chosen[rank] = "stands for the others"
    return [Chosen(rank, chosen[rank]) for rank in sorted(chosen)]


def _late(found: Gatherings, known: set[int]) -> list[Chosen]:
    """Who comes last most, each with one of those that wait for it."""
    late = [one for one in found.late() if one.late_ns > 0 and one.rank in known]
    out = []
    for one in [one for one in late if one.late_ns >= _ALSO_LATE * late[0].late_ns][:_MOST_LATE]:
        out.append(Chosen(one.rank, f"comes last to {_times(one)}"))
        waiter = found.typical_waiter(one.rank)
        if waiter is not None:
            out.append(Chosen(waiter, f"waits for rank {one.rank} as most do"))
    return out


def _times(one: Late) -> str:
    return f"{one.times:,} of {one.matched:,} collectives"


def _slowest(able: Sequence[Candidate]) -> list[Chosen]:
    """Who computes longest in a step, and who computes the smallest share of its time."""
    measured = [one for one in able if one.devices]
    if not measured:
        return []
    longest = max(measured, key=lambda one: (max(map(_compute_ns, one.devices)), -one.rank))
    least = min(measured, key=lambda one: (min(map(_compute_share, one.devices)), one.rank))
    return [Chosen(longest.rank, "computes longest"), Chosen(least.rank, "computes the smallest share of its time")]


def _compute_ns(device: Device) -> float:
    """Compute of the mean steady step, without steps that of the recording."""
    steps = steady(device.steps)
    return sum(step.compute_ns for step in steps) / len(steps) if steps else float(device.compute_ns)


def _compute_share(device: Device) -> float:
    mean = mean_step(device.steps)
    ledger = mean.ledger if mean is not None and mean.window_ns > 0 else device.ledger
    return ledger.compute / max(ledger.total_ns, 1)


def _stages(able: Sequence[Candidate], late: Sequence[int]) -> list[Chosen]:
    """One rank of each stage of the pipeline that a late rank belongs to, or else the first."""
    pipelines = _pipelines(able)
    if not pipelines:
        return []
    of_late = next((one for rank in late for one in pipelines if rank in one), pipelines[0])
    return [
        Chosen(rank, f"is stage {number} of {len(of_late)} of a pipeline") for number, rank in enumerate(of_late, 1)
    ]


def _pipelines(able: Sequence[Candidate]) -> list[list[int]]:
    """The ranks that send each other messages, group by group, each in the order of the stages."""
    above: dict[int, int] = {}

    def top(rank: int) -> int:
        while above.setdefault(rank, rank) != rank:
            rank = above[rank]
        return rank

    for one in able:
        for kind, _, _, ranks, *_ in one.summary.instances.keys:
            members = [int(part) for part in re.findall(r"\d+", ranks or "")]
            if (kind or "").lower() in _MESSAGES and 2 <= len(members) <= MOST_CHOSEN**2 and one.rank in members:
                for other in members:
                    above[top(other)] = top(one.rank)
    groups: dict[int, list[int]] = {}
    for rank in sorted(above):
        groups.setdefault(top(rank), []).append(rank)
    return sorted(groups.values())


def _spread(ranks: Sequence[int], count: int) -> list[int]:
    """So many ranks from the first to the last, evenly.

    >>> _spread(range(100), 3)
    [0, 50, 99]
    """
    count = min(count, len(ranks))
    places = dict.fromkeys(round(number * (len(ranks) - 1) / max(count - 1, 1)) for number in range(count))
    return [ranks[place] for place in places]
