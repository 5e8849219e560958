"""The reason why a job hangs, from its flight recorders' dumps: each group's first operation that does not end.

Facts missing in the dumps are not guessed: a rank without a dump is named as such, an operation that the ring has
dropped is not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from whystall.fleet.calls import Call, GroupCalls, group_calls, world_of
from whystall.fleet.dump_files import RankDump
from whystall.fleet.hang_chains import in_order
from whystall.fleet.hang_p2p import point_to_point
from whystall.fleet.hang_results import Hang, Hangs, Kind, Wait

__all__ = ["find_hangs"]

_LATE_NS: Final = 1_000_000_000  # a rank that comes a second later than it usually does, is late
_LATE_TIMES: Final = 10  # ... and ten times as late as ranks of this group usually are


def find_hangs(dumps: Sequence[RankDump], left_out: Sequence[str] = ()) -> Hangs:
    """Every group's first operation that does not end, causes before their consequences.

    ``left_out`` are sentences about files that were not read, for the notes.
    """
    notes = list(left_out)
    world = world_of(dumps)
    present = tuple(one.rank for one in dumps)
    latest = max((entry.created_ns or 0 for one in dumps for entry in one.dump.entries), default=0)
    groups = list(group_calls(dumps, notes))
    found = [hang for calls in groups if (hang := _first_bad(calls, present, latest)) is not None]
    found += point_to_point(dumps, world, latest)
    unfinished = sum(not call.finished for one in groups for calls in one.calls.values() for call in calls.values())
    if unfinished and not found:
        notes.append(f"{unfinished:,} operations had not ended, and all ranks with a dump stand at the same place")
    return Hangs(
        hangs=tuple(in_order(found)),
        ranks=present,
        missing_ranks=tuple(sorted(set(world).difference(present))),
        entries=sum(len(one.dump.entries) for one in dumps),
        unfinished=unfinished,
        notes=tuple(notes),
        blank=tuple(one.rank for one in dumps if one.dump.is_blank),
    )


def _first_bad(group: GroupCalls, present: Sequence[int], latest_ns: int) -> Hang | None:
    """The first operation of a group that differs between ranks or in which some wait."""
    members = [rank for rank in group.members if rank in present]
    odd: Hang | None = None
    for number in sorted({number for calls in group.calls.values() for number in calls}):
        there = {rank: group.calls[rank][number] for rank in members if number in group.calls.get(rank, ())}
        usual = _most_common(there)
        if any(call.differs(there[usual]) is not None for call in there.values()):
            hang = _mismatch(group, number, there, usual, present, latest_ns)
            if hang.waiting:
                return hang
            odd = odd or replace(hang, could_be="what is meant: it ended on all ranks")
        if all(call.finished for call in there.values()):
            continue
        missing = tuple(rank for rank in members if rank not in there and _never_came(group, rank, number))
        hang = _hang(group, number, there, usual, present, latest_ns)
        if missing:
            return _missing(group, replace(hang, kind=Kind.MISSING_ENTER, ranks=missing))
        if hang.undumped or len(there) < len(members):
            return replace(hang, kind=Kind.UNKNOWN, ranks=())
        return _entered_by_all(group, hang, there)
    return odd


def _never_came(group: GroupCalls, rank: int, number: int) -> bool:
    """Whether a rank had not yet called an operation; one that its ring has dropped shows nothing."""
    calls = group.calls.get(rank, {})
    return max(calls) < number if calls else rank in group.complete


def _most_common(there: dict[int, Call]) -> int:
    """A rank with the most common call."""
    signatures = {rank: (call.operations, call.types, call.elements) for rank, call in there.items()}
    counted = Counter(signatures.values())
    return max(there, key=lambda rank: (counted[signatures[rank]], -rank))


def _hang(
    group: GroupCalls, number: int, there: dict[int, Call], usual: int, present: Sequence[int], latest_ns: int
) -> Hang:
    """The fields that every kind of hang has."""
    waiting = tuple(rank for rank, call in there.items() if not call.finished)
    entered = [call.first.created_ns for rank, call in there.items() if rank in waiting and call.first.created_ns]
    return Hang(
        kind=Kind.UNKNOWN,
        group=group.group.name,
        description=group.group.description,
        members=group.members,
        sequence=number,
        by_order=group.by_order,
        operation=there[usual].first.operation,
        ranks=(),
        waiting=waiting,
        call=there[usual].told(usual, number),
        others=(),
        undumped=tuple(rank for rank in group.members if rank not in present),
        waited_ns=max(latest_ns - min(entered), 0) if entered else None,
    )


def _mismatch(
    group: GroupCalls, number: int, there: dict[int, Call], usual: int, present: Sequence[int], latest_ns: int
) -> Hang:
    """Ranks called different operations: the minority is at fault; without a minority no rank is."""
    hang = _hang(group, number, there, usual, present, latest_ns)
    differing = tuple(rank for rank, call in there.items() if call.differs(there[usual]) is not None)
    shifts = {rank: _shift(group, number, rank, usual) for rank in differing}
    could_be = None
    if 2 * len(differing) >= len(there) and not any(shifts.values()):
        could_be = f"rank {usual} may be the one at fault instead: equally many ranks asked for the other"
    shift = next(iter(shifts.values())) if len(set(shifts.values())) == 1 else None
    return replace(
        hang,
        kind=Kind.MISMATCH,
        ranks=differing,
        others=tuple(there[rank].told(rank, number) for rank in differing),
        differs=there[differing[0]].differs(there[usual]),
        shift=shift,
        could_be=could_be,
    )


def _shift(group: GroupCalls, number: int, rank: int, usual: int) -> Wait | None:
    """Whether the rank left a call out or made one too many: its call comes after the others' call, or before it.

    The others have often not gone on, so that the usual successor is looked up in their earlier calls.
    """
    own, others = group.calls[rank], group.calls[usual]
    mine, theirs = own[number], others[number]
    for place in (number, *reversed([one for one in others if one < number])):
        after = others.get(place + 1)
        if after is not None and after.is_like(mine) and others[place].is_like(theirs):
            return Wait.LEFT_OUT
    following = own.get(number + 1)
    return Wait.EXTRA if following is not None and following.is_like(theirs) else None


def _missing(group: GroupCalls, hang: Hang) -> Hang:
    """A hang of ranks that never came, with their last calls, or the earlier call that they left out."""
    usual = hang.call.rank if hang.call is not None else hang.waiting[0]
    last = tuple(
        calls[max(calls)].told(rank, max(calls)) for rank in hang.ranks if (calls := group.calls.get(rank, {}))
    )
    starts = {_one_ahead_from(group, rank, usual, hang.sequence) for rank in hang.ranks}
    first = next(iter(starts)) if len(starts) == 1 else None
    if first is None:
        return replace(hang, others=last)
    others = tuple(group.calls[rank][first].told(rank, first) for rank in hang.ranks)
    left_out = group.calls[usual][first]
    return replace(
        hang,
        sequence=first,
        operation=left_out.first.operation,
        call=left_out.told(usual, first),
        others=others,
        shift=Wait.LEFT_OUT,
    )


def _one_ahead_from(group: GroupCalls, rank: int, usual: int, end: int) -> int | None:
    """The number from which a rank is one call ahead of the others, by its lines of code; None where it is not."""
    own, others = group.calls.get(rank, {}), group.calls[usual]
    first = None
    for number in range(end - 1, 0, -1):
        if number not in own or number not in others or not own[number].is_like(others[number + 1]):
            break
        if own[number].first.place is None:
            break
        first = number if not own[number].is_like(others[number]) else first
    return first


def _entered_by_all(group: GroupCalls, hang: Hang, there: dict[int, Call]) -> Hang:
    """All ranks are in: some late, some not out again, or no rank differs."""
    begun = tuple(rank for rank, call in there.items() if call.finished or call.first.state == "started")
    not_begun = tuple(rank for rank in there if rank not in begun)
    late_ns = _lateness(group, hang.sequence, there)
    late = tuple(rank for rank, by in late_ns.items() if by >= _LATE_NS)
    if late and len(late) < len(there):
        told = tuple(there[rank].told(rank, hang.sequence) for rank in late)
        return replace(hang, kind=Kind.LATE_ENTER, ranks=late, others=told, late_ns=max(late_ns[rank] for rank in late))
    if begun and not_begun and not any(call.finished for call in there.values()):
        told = tuple(there[rank].told(rank, hang.sequence) for rank in not_begun)
        could_be = "their hosts asked for it in time: their devices are behind, or wait for something else"
        return replace(hang, kind=Kind.LATE_ENTER, ranks=not_begun, others=told, could_be=could_be)
    out = [rank for rank, call in there.items() if call.finished]
    unsure = None if out else "the network, the library or a device: all ranks asked for the same"
    return replace(hang, kind=Kind.MISSING_EXIT, ranks=hang.waiting if out else (), could_be=unsure)


def _lateness(group: GroupCalls, number: int, there: dict[int, Call]) -> dict[int, int]:
    """The delay of each rank after the first, beyond its usual delay; nanoseconds.

    The usual delay, from the operations before, includes the offsets of the hosts' clocks. A rank counts as late only
    if it is far beyond the usual differences between ranks of this group.
    """
    history = list(_relative(group, number, tuple(there)))
    now = _after_first({rank: call.first.created_ns for rank, call in there.items()})
    if now is None or not history:
        return {}
    usual = {rank: round(median(one[rank] for one in history)) for rank in there}
    spread = round(median(max(abs(one[rank] - usual[rank]) for rank in there) for one in history))
    own = {rank: now[rank] - usual[rank] for rank in there}
    first = min(own.values())
    return {rank: by - first for rank, by in own.items() if by - first >= _LATE_TIMES * spread}


def _relative(group: GroupCalls, number: int, ranks: Sequence[int]) -> Iterator[dict[int, int]]:
    """For each earlier operation that all ranks recorded: how long after the first each rank called it."""
    common = set.intersection(*(set(group.calls[rank]) for rank in ranks))
    for one in sorted(common):
        relative = _after_first({rank: group.calls[rank][one].first.created_ns for rank in ranks})
        if one < number and relative is not None:
            yield relative


def _after_first(times: dict[int, int | None]) -> dict[int, int] | None:
    known = {rank: time for rank, time in times.items() if time is not None}
    first = min(known.values(), default=0)
    return {rank: time - first for rank, time in known.items()} if len(known) == len(times) and known else None
