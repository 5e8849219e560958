"""One ledger over the roles of a job whose processes do different things: trainers, rollout servers, rewards.

In reinforcement learning a role waits for another as a device waits for its host. Each instant of the time that all
recordings share belongs to the first that applies: several roles work, one role works alone (the others wait for it),
no role works and some communicate, no process does anything. The parts sum to that time exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]

PAUSE_NS: Final = 5_000_000
"""A process whose pauses are shorter works on: the host that launches its kernels is slow, it waits for no role."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Times in order that do not overlap, ns since 1970."""

    begin: Times
    end: Times

    @classmethod
    def of(cls, begin: Times, end: Times, pause_ns: int = 0) -> Stretches:
        """The union of unsorted intervals; those that are ``pause_ns`` or less apart are one."""
        order = np.argsort(begin, kind="stable")
        order = order[end[order] > begin[order]]
        begin, end = begin[order], np.maximum.accumulate(end[order]) if len(order) else end[order]
        new = np.append(True, begin[1:] > end[:-1] + pause_ns)[: len(begin)]
        return cls(begin[new], end[np.append(new[1:], True)[: len(begin)]])

    def within(self, begin: int, end: int) -> Stretches:
        """The parts of them within a window."""
        low, high = np.clip(self.begin, begin, end), np.clip(self.end, begin, end)
        return Stretches(low[high > low], high[high > low])

    def at(self, instants: Times) -> NDArray[np.bool_]:
        """Whether each instant lies in an interval."""
        place = np.searchsorted(self.begin, instants, side="right") - 1
        if not len(self.begin):
            return np.zeros(len(instants), np.bool_)
        return np.asarray((place >= 0) & (instants < self.end[np.maximum(place, 0)]), np.bool_)

    def both(self, other: Stretches) -> Stretches:
        """The intersection of both."""
        return self._where(other, inside=True)

    def without(self, other: Stretches) -> Stretches:
        """The difference: in these and not in the others."""
        return self._where(other, inside=False)

    def _where(self, other: Stretches, *, inside: bool) -> Stretches:
        times = np.unique(np.concatenate([self.begin, self.end, other.begin, other.end]))
        kept = np.flatnonzero(self.at(times[:-1]) & (other.at(times[:-1]) == inside))
        return Stretches.of(times[kept], times[kept + 1])


@dataclass(frozen=True, slots=True, eq=False)
class Doing:
    """The activity of one process in one role, and the time of its recording (ns since 1970).

    ``steps`` are the role's own, ``step_name`` names their kind.
    """

    role: str
    process: str
    begin: int
    end: int
    work: Stretches
    communication: Stretches
    steps: Stretches
    step_name: str | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """One role. Times are ns of the time that all recordings share."""

    role: str
    processes: int
    steps: int
    """Steps of all its processes that end in that time."""
    step_name: str | None
    step_ns: int | None
    """Their mean length."""
    work_ns: int
    """At least one of its processes works."""
    mean_work_ns: int
    """A process works, in the mean over them."""
    alone_ns: int
    """It works and no other role does."""
    tail_ns: int
    """Part of that time in which at most half of its processes still work: its long tail; 0 for a single one."""
    spread_ns: int
    """The part of its tail that vanishes with the same work spread over all its processes."""
    waits_ns: int
    """None of its processes works while another role does: its idle bubbles."""
    bubbles: int
    longest_bubble_ns: int
    communicates_ns: int
    """A process communicates and does not work, in the mean over them."""


@dataclass(frozen=True, slots=True)
class Roles:
    """All roles, by how long they work alone, and the ledger over them: the parts sum to ``window_ns``."""

    window_ns: int
    roles: tuple[Role, ...]
    several_ns: int
    """More than one role works."""
    communication_ns: int
    """No role works, and at least one process communicates: a weight transfer, or ranks that wait for each other."""
    nobody_ns: int
    one_after_another: bool
    """Whether the roles are phases of the same processes, which cannot work beside each other."""

    @property
    def at_most(self) -> float | None:
        """The speed-up if all other roles' work were hidden behind that of the busiest; ``None`` for phases."""
        busiest = max((role.work_ns for role in self.roles), default=0)
        return None if self.one_after_another or not busiest else self.window_ns / busiest


def roles_of(doings: Sequence[Doing]) -> Roles | None:
    """The ledger over the processes' activities; ``None`` where their recordings do not share any time."""
    begin, end = max(one.begin for one in doings), min(one.end for one in doings)
    if begin >= end:
        return None
    edges = [np.array([begin, end], np.int64)]
    for one in doings:
        for stretches in (one.work.within(begin, end), one.communication.within(begin, end)):
            edges += [stretches.begin, stretches.end]
    times = np.unique(np.concatenate(edges))
    lasts, instants = np.diff(times), times[:-1]
    names = list(dict.fromkeys(one.role for one in doings))
    works = {name: np.stack([one.work.at(instants) for one in doings if one.role == name]) for name in names}
    speaks = {name: np.stack([one.communication.at(instants) for one in doings if one.role == name]) for name in names}
    at_work = {name: own.any(axis=0) for name, own in works.items()}
    how_many = np.sum(list(at_work.values()), axis=0)
    speaking = np.any([own.any(axis=0) for own in speaks.values()], axis=0)
    communicates = np.asarray((how_many == 0) & speaking, np.bool_)
    found = [
        _role([one for one in doings if one.role == name], works[name], speaks[name], how_many, lasts, (begin, end))
        for name in names
    ]
    return Roles(
        window_ns=int(end - begin),
        roles=tuple(sorted(found, key=lambda role: (-role.alone_ns, role.role))),
        several_ns=_sum(lasts, np.asarray(how_many > 1, np.bool_)),
        communication_ns=_sum(lasts, communicates),
        nobody_ns=_sum(lasts, np.asarray((how_many == 0) & ~speaking, np.bool_)),
        one_after_another=len({one.process for one in doings}) < len(doings),
    )


def _role(
    own: Sequence[Doing],
    works: NDArray[np.bool_],
    speaks: NDArray[np.bool_],
    how_many: NDArray[np.int64],
    lasts: Times,
    window: tuple[int, int],
) -> Role:
    at_work = works.any(axis=0)
    count = works.sum(axis=0)
    alone = at_work & (how_many == 1)
    tail = np.asarray(alone & (2 * count <= len(works)), np.bool_)
    bubbles = _runs(~at_work & (how_many > 0), lasts)
    lengths = np.concatenate([_lengths(one.steps, window) for one in own])
    return Role(
        role=own[0].role,
        processes=len(own),
        steps=len(lengths),
        step_name=next((one.step_name for one in own if one.step_name), None),
        step_ns=int(lengths.mean()) if len(lengths) else None,
        work_ns=_sum(lasts, at_work),
        mean_work_ns=int((works * lasts).sum()) // len(works),
        alone_ns=_sum(lasts, alone),
        tail_ns=_sum(lasts, tail),
        spread_ns=int((lasts[tail] * (1 - count[tail] / len(works))).sum()),
        waits_ns=int(bubbles.sum()),
        bubbles=len(bubbles),
        longest_bubble_ns=int(bubbles.max(initial=0)),
        communicates_ns=int(((speaks & ~works) * lasts).sum()) // len(works),
    )


def _lengths(steps: Stretches, window: tuple[int, int]) -> Times:
    """How long those steps took that end in the window."""
    inside = (steps.end > window[0]) & (steps.end <= window[1])
    return np.asarray(steps.end[inside] - steps.begin[inside], np.int64)


def _runs(flags: NDArray[np.bool_], lasts: Times) -> Times:
    """How long each unbroken run of flags takes."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]])))
    until = np.append(0, np.cumsum(lasts))
    return np.asarray(until[edges[1::2]] - until[edges[::2]], np.int64)


def _sum(lasts: Times, chosen: NDArray[np.bool_] | np.bool_) -> int:
    return int(lasts[chosen].sum())
