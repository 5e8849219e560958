"""Sends and receives that do not end, and the ranks that wait in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from whystall.fleet.calls import is_finished
from whystall.fleet.dump_files import RankDump
from whystall.fleet.hang_results import Hang, Kind, RankCall
from whystall.fleet.recorder_dumps import Entry

__all__ = ["point_to_point"]

# "send 0->1" and "recv 1<-0", ranks counted within the group; "?" where the operation does not state it.
_PEERS: Final = re.compile(r"^(?P<what>send|recv) (?P<own>\d{1,7}|\?)(?:->|<-)(?P<peer>\d{1,7}|\?)$")


def point_to_point(dumps: Sequence[RankDump], world: Sequence[int], latest_ns: int) -> list[Hang]:
    """The first send or receive between two ranks that does not end; without both names it is left out."""
    waiting: dict[tuple[int, int, str], Entry] = {}
    for one in dumps:
        for what, peer, entry in _unfinished(one, world):
            waiting.setdefault((one.rank, peer, what), entry)
    present = {one.rank for one in dumps}
    found = []
    for (rank, peer, what), entry in waiting.items():
        answered = (peer, rank, "recv" if what == "send" else "send") in waiting
        if answered and rank > peer:
            continue  # reported once, by the lower rank
        found.append(_hang(rank, peer, entry, present, answered=answered, latest_ns=latest_ns))
    return found


def _unfinished(one: RankDump, world: Sequence[int]) -> Iterator[tuple[str, int, Entry]]:
    states = {entry.library for entry in one.dump.entries if entry.state in ("started", "completed")}
    for entry in one.dump.entries:
        told = _PEERS.match(entry.operation) if entry.is_p2p else None
        if told is None or told["peer"] == "?" or is_finished(entry, states_tell=entry.library in states):
            continue
        members = one.dump.members.get(entry.group.name) or (tuple(world) if entry.group.is_default else ())
        peer = int(told["peer"])
        if peer < len(members) and members[peer] != one.rank:
            yield told["what"], members[peer], entry


def _hang(rank: int, peer: int, entry: Entry, present: set[int], *, answered: bool, latest_ns: int) -> Hang:
    kind = Kind.MISSING_EXIT if answered else Kind.MISSING_ENTER if peer in present else Kind.UNKNOWN
    call = RankCall(
        rank, entry.sequence, entry.operation, entry.input_sizes, entry.input_types, entry.created_ns, entry.place
    )
    return Hang(
        kind=kind,
        group=entry.group.name,
        description=entry.group.description,
        members=tuple(sorted((rank, peer))),
        sequence=entry.sequence,
        by_order=False,
        operation=entry.operation,
        ranks=(peer,) if kind is Kind.MISSING_ENTER else (),
        waiting=(rank, peer) if answered else (rank,),
        call=call,
        others=(),
        undumped=() if peer in present else (peer,),
        waited_ns=max(latest_ns - entry.created_ns, 0) if entry.created_ns else None,
        could_be="the network, the library or a device: both asked for it" if answered else None,
    )
