"""Turns an observation into the class of cause that takes most of a job's time, with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from whystall.live.kinds import KINDS, LOSSES, UNDECIDED, WORK, Kind, LineOf, is_distributed, kind_of, places
from whystall.live.observation import Look, Observation, Stack
from whystall.vocabulary.frames import Frame

# A smaller share is no wait of the job: it counts as work.
LEAST_SHARE: Final = 0.15
# Fewer samples than this are no evidence for a kind.
_FEWEST_LOOKS: Final = 4
_MOST: Final = 0.5
# Minimum share of the samples in which another thread holds the lock, while it is on a core.
_HELD: Final = 0.3
_ON_DISK: Final = 0.25
_BUSY: Final = 0.5
_ONE_CORE: Final = 1.3
_BACKWARD: Final = 0.45
_LATE: Final = 0.25
_TOLD: Final = 0.05
# Python's own work of a process that grows by this much a second is a leak or a preparation.
_GROWTH_PER_S: Final = 1 << 20
# As torch and gloo name the threads that carry messages (`pt_gloo_runloop`, `gloo_tcp_loop`, `pt_nccl_watchdg`).
_BACK_ENDS: Final = ("pt_gloo", "gloo_", "pt_nccl")
_WORK: Final = frozenset(kind.id for kind in WORK)
_NEEDS_LOCK: Final = frozenset({UNDECIDED, "forward", "backward", "optimizer", "batches"})


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code and its share of the samples that belong to its kind."""

    frame: Frame
    text: str | None
    share: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class, its share of the training thread's time, where, and further facts as sentences."""

    kind: Kind | None
    """`None`: the job computes."""
    share: float
    sentence: str
    places: tuple[Place, ...]
    shares: dict[str, float]
    facts: tuple[str, ...]


def verdict_of(seen: Observation, line_of: LineOf) -> Verdict:
    """The main use of the training thread's time. ``line_of`` returns the text of a line where it can be read."""
    kinds = [kind_of(stack, line_of) for stack in seen.ticks]
    decided = _Decided(seen, line_of)
    kinds = [decided.kind(kind) for kind in kinds]
    shares = {kind: count / len(kinds) for kind, count in Counter(kinds).most_common()}
    losses = {kind.id: shares.get(kind.id, 0.0) for kind in LOSSES}
    kind_id, share = max(losses.items(), key=lambda item: item[1])
    facts = tuple(_facts(seen, kind_id if share >= LEAST_SHARE else None, line_of))
    if share >= LEAST_SHARE:
        kind = KINDS[kind_id]
        chosen = [stack for stack, one in zip(seen.ticks, kinds, strict=True) if one == kind_id]
        found = _places(chosen, line_of)
        return Verdict(kind, share, f"It {kind.words}: {share:.0%} of the time{_at(found)}.", found, shares, facts)
    sentence, share, found = _work(seen, kinds, shares, line_of)
    return Verdict(None, share, sentence, found, shares, facts)


class _Decided:
    """Decides stacks that are ambiguous alone: by the lock's holder, and by the thread's state, in samples of both."""

    def __init__(self, seen: Observation, line_of: LineOf) -> None:
        self._seen = seen
        self._of: dict[str, list[Look]] = {}
        for look in seen.looks:
            self._of.setdefault(kind_of(look.stack, line_of), []).append(look)
        training = seen.job.thread(seen.training)
        self._disk = training.on_disk if training else 0.0
        # A thread is seldom found in DistributedDataParallel itself; its back-ends have threads of their own.
        self._distributed = any(map(is_distributed, seen.ticks)) or any(
            thread.name.startswith(_BACK_ENDS) for thread in seen.job.threads
        )
        self._held_by_others = _held_by_others(seen)

    def kind(self, kind: str) -> str:
        """The kind of a stack's activity."""
        if kind in {UNDECIDED, "batches"} and self._disk >= _ON_DISK:
            return "storage"
        if kind == "workers" and _workers_on_disk(self._seen):
            return "storage"
        if kind in _NEEDS_LOCK and self._held_by_others:
            return "gil"
        if kind in {"backward", "forward"} and self._distributed and self._waits(kind):
            return "ranks"
        return self._own() if kind == UNDECIDED else kind

    def _waits(self, kind: str) -> bool:
        """Whether the thread mostly does not run while it is at this."""
        looks = self._of.get(kind, [])
        return len(looks) >= _FEWEST_LOOKS and _share(looks, lambda look: not look.ran) >= _MOST

    def _own(self) -> str:
        """The kind of the user's own code: with the lock it is Python, without it an operator that it called."""
        if self._waits(UNDECIDED):
            return "waits"
        looks, own = self._of.get(UNDECIDED, []), self._seen.training
        if len(looks) < _FEWEST_LOOKS and self._seen.looks:
            return "operator"  # too few samples found it there to conclude that it is Python
        return "python" if not looks or _share(looks, lambda look: look.holder == own) >= _MOST else "operator"


def _share(looks: Sequence[Look], test: Callable[[Look], bool]) -> float:
    return sum(map(test, looks)) / len(looks)


def _held_by_others(seen: Observation) -> bool:
    """Whether another thread of the process holds the lock for much of the time, and computes with it."""
    others = Counter(look.holder for look in seen.looks if look.holder not in {None, seen.training})
    if not others or len(seen.looks) < _FEWEST_LOOKS:
        return False
    holder, count = others.most_common(1)[0]
    thread = seen.job.thread(holder or 0)
    return count / len(seen.looks) >= _HELD and thread is not None and thread.on_core >= _HELD


def _workers_on_disk(seen: Observation) -> bool:
    """Whether the processes below wait for storage more than they compute."""
    below = [one for pid, one in seen.processes.items() if pid in seen.children]
    waiting = [thread.on_disk for one in below for thread in one.threads if thread.tid == one.pid]
    return (
        bool(waiting) and sum(waiting) / len(waiting) >= _ON_DISK and sum(one.cores for one in below) < len(below) / 2
    )


def _places(stacks: Sequence[Stack], line_of: LineOf, most: int = 3) -> tuple[Place, ...]:
    return tuple(Place(frame, line_of(frame), count / len(stacks)) for frame, count in places(stacks).most_common(most))


def _at(found: Sequence[Place]) -> str:
    return f", at {found[0].frame.file}:{found[0].frame.line}" if found else ""


def _work(
    seen: Observation, kinds: Sequence[str], shares: dict[str, float], line_of: LineOf
) -> tuple[str, float, tuple[Place, ...]]:
    """The sentence on a job that computes."""
    training = seen.job.thread(seen.training)
    busy = training.on_core if training else 0.0
    backward = shares.get("backward", 0.0)
    chosen = [stack for stack, kind in zip(seen.ticks, kinds, strict=True) if kind == "backward"]
    if backward >= _BACKWARD and seen.job.wanted_cores < _ONE_CORE and seen.cores > 1:
        found = _places(chosen, line_of)
        return f"One thread is busy in the backward pass: {backward:.0%} of the time{_at(found)}.", backward, found
    told = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items() if share >= _TOLD)
    found = _places(seen.ticks, line_of)
    on_cores = f"on {seen.job.cores:.1f} cores of {seen.cores} ({told})"
    work = sum(share for kind, share in shares.items() if kind in _WORK)
    return f"It computes, {on_cores}; its training thread runs {busy:.0%} of the time.", work, found


def _facts(seen: Observation, kind: str | None, line_of: LineOf) -> Sequence[str]:
    out = []
    training = seen.job.thread(seen.training)
    if training is not None:
        out.append(f"The training thread is on a core {training.on_core:.0%} of the time.")
        if training.late >= _LATE:
            out.append(f"It is ready and waits for a core {training.late:.0%} of the time: others compute there.")
        if training.on_disk >= 0.05:
            out.append(f"It sleeps on storage {training.on_disk:.0%} of the time.")
    if kind in {"workers", "storage"} and seen.children:
        out += _of_workers(seen, line_of)
    if kind == "gil":
        others = sorted(seen.job.threads, key=lambda one: -one.on_core)
        holder = next((one for one in others if one.tid != seen.training), None)
        if holder is not None:
            out.append(f"Another thread ({holder.tid}, {holder.name}) is on a core {holder.on_core:.0%} of the time.")
    first, last = seen.job.resident_bytes
    if (last - first) / seen.seconds >= _GROWTH_PER_S and last > first * 1.01:
        out.append(f"Its memory grows by {(last - first) / seen.seconds / (1 << 20):.1f} MiB a second.")
    return out


def _of_workers(seen: Observation, line_of: LineOf) -> Sequence[str]:
    """How busy the processes below are, and at which line they are found most often."""
    below = [seen.processes[pid] for pid in seen.children if pid in seen.processes]
    if not below:
        return []
    cores = sum(one.cores for one in below)
    stacks = [stack for own in seen.children.values() for stack in own]
    found = _places(stacks, line_of, most=1)
    count = f"{len(below)} worker" + ("s" if len(below) > 1 else "")
    where = f", mostly at {found[0].frame.file}:{found[0].frame.line}" if found and cores >= len(below) * _BUSY else ""
    return [f"Its {count} keep{'s' if len(below) == 1 else ''} {cores:.1f} cores busy{where}."]
