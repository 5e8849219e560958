"""The collectives of each process group, rank by rank, under numbers that mean the same on all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from whystall.fleet.dump_files import RankDump
from whystall.fleet.hang_results import RankCall
from whystall.fleet.recorder_dumps import Entry, Group
from whystall.trace.metadata import MOST_RANKS

__all__ = ["Call", "GroupCalls", "group_calls", "is_finished", "world_of"]

# Each rank brings tensors of its own size, or has a role of its own, so that sizes show no mistake.
_UNEVEN: Final = ("all_to_all", "alltoall", "gather", "scatter", "reduce_scatter", "all_gather")
_EVEN: Final = frozenset({"_all_gather_base", "_allgather_base", "_reduce_scatter_base"})


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of one rank: several entries where it was coalesced."""

    entries: tuple[Entry, ...]
    finished: bool

    @property
    def first(self) -> Entry:
        """The entry that was enqueued first."""
        return self.entries[0]

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations of the call."""
        return tuple(one.operation for one in self.entries)

    @property
    def types(self) -> tuple[tuple[str, ...], ...]:
        """The types of each operation's inputs."""
        return tuple(tuple(sorted(set(one.input_types))) for one in self.entries)

    @property
    def elements(self) -> tuple[int | None, ...]:
        """How many elements each operation takes in; None where ranks may differ."""
        return tuple(
            None if _is_uneven(one.operation) else sum(prod(size) for size in one.input_sizes) for one in self.entries
        )

    def differs(self, other: Call) -> str | None:
        """The difference between two ranks' calls under one number: "operation", "size", "type" or nothing."""
        if self.operations != other.operations:
            return "operation"
        if self.types != other.types and all(self.types) and all(other.types):
            return "type"
        return "size" if self.elements != other.elements else None

    def is_like(self, other: Call) -> bool:
        """Whether it is the same call in the same place of the program, as far as that is known."""
        places = self.first.place, other.first.place
        return self.differs(other) is None and (None in places or places[0] == places[1])

    def told(self, rank: int, number: int) -> RankCall:
        """The call as results show it."""
        first = self.first
        return RankCall(
            rank, number, first.operation, first.input_sizes, first.input_types, first.created_ns, first.place
        )


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """A process group with the calls of each of its ranks by number."""

    group: Group
    members: tuple[int, ...]
    calls: Mapping[int, Mapping[int, Call]]
    """By rank and number; a rank that never called anything here has no calls."""
    complete: frozenset[int]
    """Ranks whose ring still holds all their entries."""
    by_order: bool
    """Whether numbers are places in the order of calls, since the recorder's own count something else too."""


def is_finished(entry: Entry, *, states_tell: bool) -> bool:
    """Whether an operation had ended. gloo and its kin leave the state at "scheduled" and only retire ended entries."""
    return entry.state == "completed" or (entry.retired and not states_tell)


def world_of(dumps: Sequence[RankDump]) -> tuple[int, ...]:
    """All ranks that dumps name, those with a dump and those below one with a dump included."""
    named = {rank for one in dumps for ranks in one.dump.members.values() for rank in ranks}
    highest = max((one.rank for one in dumps), default=-1)
    below = range(highest + 1) if highest < MOST_RANKS else ()
    return tuple(sorted(named.union(below, (one.rank for one in dumps))))


def group_calls(dumps: Sequence[RankDump], notes: list[str]) -> Iterator[GroupCalls]:
    """Every process group with several recorded ranks; adds a note for each that cannot be compared."""
    world = world_of(dumps)
    sorted_out: dict[tuple[Group, tuple[int, ...]], dict[int, dict[int, Call]]] = defaultdict(dict)
    members: dict[tuple[Group, tuple[int, ...]], set[int]] = defaultdict(set)
    for one in dumps:
        for group, calls in _calls_of(one).items():
            told = _told_members(one, group, world) or next(
                (ranks for other in dumps if one.rank in (ranks := other.dump.members.get(group.name, ()))), ()
            )
            sorted_out[group, told][one.rank] = calls
            members[group, told] |= {*told, one.rank}
    complete = frozenset(one.rank for one in dumps if one.dump.complete or not (one.dump.entries or one.dump.is_blank))
    for key in sorted(sorted_out):
        numbered, by_order = _same_numbers(key[0], sorted_out[key], complete, notes)
        if numbered is not None and len(members[key]) > 1:
            yield GroupCalls(key[0], tuple(sorted(members[key])), numbered, complete, by_order)


def _told_members(one: RankDump, group: Group, world: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of a group in a dump; empty where it does not list them.

    gloo lists the default group alone, under no name.
    """
    told = one.dump.members.get(group.name, ())
    if not told and group.is_default:
        return world
    return told if one.rank in told else ()


def _calls_of(one: RankDump) -> dict[Group, dict[int, Call]]:
    states = {entry.library for entry in one.dump.entries if entry.state in ("started", "completed")}
    found: dict[Group, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in one.dump.entries:
        if not entry.is_p2p:
            found[entry.group][entry.sequence].append(entry)
    return {
        group: {
            number: Call(tuple(entries), all(is_finished(e, states_tell=e.library in states) for e in entries))
            for number, entries in sorted(numbered.items())
        }
        for group, numbered in found.items()
    }


def _same_numbers(
    group: Group, calls: Mapping[int, dict[int, Call]], complete: frozenset[int], notes: list[str]
) -> tuple[Mapping[int, Mapping[int, Call]] | None, bool]:
    """The calls under numbers that agree across ranks, and whether those are places in the order.

    gloo counts sends and receives in the same numbers and does not record them: gaps show it.
    """
    if not any(_has_gaps(numbered, complete=rank in complete) for rank, numbered in calls.items()):
        return calls, False
    if complete.issuperset(calls):
        return {rank: dict(enumerate(numbered.values(), start=1)) for rank, numbered in calls.items()}, True
    notes.append(
        f"group {group.name or 'default'} is not compared: its numbers count what is not recorded (sends and "
        "receives on gloo), and the recorder has dropped the first ones; set TORCH_FR_BUFFER_SIZE higher"
    )
    return None, False


def _has_gaps(numbered: Mapping[int, Call], *, complete: bool) -> bool:
    numbers = list(numbered)
    return numbers[-1] - numbers[0] + 1 != len(numbers) or (complete and numbers[0] > 1)


def _is_uneven(operation: str) -> bool:
    return operation not in _EVEN and any(part in operation for part in _UNEVEN)
