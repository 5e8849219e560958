"""Chooses the few of many ranks to analyse in depth, with reasons: those with most evidence about the whole job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whystall.analysis.groups import joined
from whystall.analysis.results import Device
from whystall.analysis.steadiness import mean_step, steady
from whystall.fleet.gatherings import Gatherings, Late
from whystall.fleet.summary import Candidate

MOST_CHOSEN: Final = 8
MOST_STAGES: Final = 64
_MOST_LATE: Final = 2
# A rank whose lateness is below this share of the latest one's is not chosen for it.
_ALSO_LATE: Final = 0.25
_MESSAGES: Final = frozenset({"send", "recv", "send_recv", "sendrecv"})


@dataclass(frozen=True, slots=True)
class Chosen:
    """A rank that is looked at in depth, and why."""

    rank: int
    why: str


def chosen_ranks(
    candidates: Sequence[Candidate], found: Gatherings, most: int = MOST_CHOSEN, room: int = MOST_CHOSEN
) -> list[Chosen]:
    """At most ``most`` ranks by number: late ones, one that waits, the slowest, the rest spread.

    Ranks that belong together are chosen together, as the stages of a pipeline or the ranks that share a layer: with
    some of them missing the straggler is unknown. A pipeline may exceed ``most`` up to the limit ``room``.
    """
    whole = [one for one in candidates if not one.summary.truncated and one.devices]
    able = whole or [one for one in candidates if one.devices] or list(candidates)
    known = {one.rank for one in able}
    wanted: dict[int, str] = {}
    for one in [*_late(found, known), *_slowest(able)]:
        if one.rank in known:
            wanted.setdefault(one.rank, one.why)
    units = _units(able, most, room)
    chosen: dict[int, str] = {}
    for rank in wanted:
        _add(units.get(rank, [rank]), wanted, chosen, most, room)
    apart = list(dict.fromkeys(min(units.get(rank, [rank])) for rank in sorted(known - set(chosen))))
    each = max(len(units.get(rank, [rank])) for rank in apart) if apart else 1
    for rank in _spread(apart, (most - len(chosen)) // each):
        _add(units.get(rank, [rank]), wanted, chosen, most, room)
    return [Chosen(rank, chosen[rank]) for rank in sorted(chosen)]


def _add(unit: Sequence[int], wanted: Mapping[int, str], chosen: dict[int, str], most: int, room: int) -> None:
    """Adds the ranks of a unit that are not there yet, if there is room for all."""
    new = [rank for rank in unit if rank not in chosen]
    if len(chosen) + len(new) > (most if chosen else max(most, room)):
        return
    first = next((rank for rank in unit if rank in wanted), None)
    with_it = "stands for the others" if first is None else f"belongs with rank {first}"
    for rank in new:
        chosen[rank] = wanted.get(rank, with_it)


def _late(found: Gatherings, known: set[int]) -> list[Chosen]:
    """The ranks that come last most, each with one of those that wait for it."""
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
    """The rank with the longest compute in a step, and the one with the smallest compute share."""
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


def _units(able: Sequence[Candidate], most: int, room: int) -> dict[int, list[int]]:
    """The ranks that each rank belongs with: of its pipeline, and of the group that it meets most often.

    Each of several dimensions of a job has groups of its own; ranks that share a layer meet in each of its layers, and
    ranks with the same weights once in a step. If that exceeds the room, a pipeline goes first.
    """
    messages = [group for one in able for group in _talks_to(one)]
    layers = [group for one in able if (group := _meets_most(one, most, len(able)))]
    known = {one.rank for one in able}
    as_many = max(most, min(room, MOST_STAGES))
    for groups, largest in (([*messages, *layers], most), (messages, as_many), (layers, most)):
        units = [one for one in joined(groups) if known.issuperset(one)]
        if units and max(map(len, units)) <= largest:
            return {rank: unit for unit in units for rank in unit}
    return {}


def _talks_to(one: Candidate) -> list[list[int]]:
    """The groups in which a rank sends and receives."""
    found = []
    for kind, _, _, ranks, *_ in one.summary.instances.keys:
        members = [int(part) for part in re.findall(r"\d+", ranks or "")]
        if (kind or "").lower() in _MESSAGES and 2 <= len(members) <= MOST_STAGES and one.rank in members:
            found.append(members)
    return found


def _meets_most(one: Candidate, most: int, ranks: int) -> list[int]:
    """The group of few ranks that a rank meets most often in collectives; empty where it meets all equally often."""
    counts: Counter[tuple[int, ...]] = Counter()
    for row in one.summary.communication:
        if row.collective.lower() not in _MESSAGES and row.ranks and one.rank in row.ranks:
            counts[tuple(row.ranks)] += row.count
    group = min(counts, key=lambda own: (-counts[own], len(own), own), default=())
    return list(group) if 2 <= len(group) <= most and len(group) < ranks else []


def _spread(ranks: Sequence[int], count: int) -> list[int]:
    """``count`` ranks from the first to the last, evenly.

    >>> _spread(range(100), 3)
    [0, 50, 99]
    """
    count = min(count, len(ranks))
    places = dict.fromkeys(round(number * (len(ranks) - 1) / max(count - 1, 1)) for number in range(count))
    return [ranks[place] for place in places]
