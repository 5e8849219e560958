"""The ledger of a whole job: from the start of its launcher to the exit of its process, in parts that add up exactly.

All instants are on one clock of one machine. The time of a part whose end is unknown belongs to the part after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from whystall.analysis.results import Result
from whystall.run_folder.job_times import MODEL, JobPlace, JobTimes, by_kind

JobPartName = Literal[
    "launch",
    "interpreter",
    "before torch",
    "import torch",
    "imports",
    "commands",
    "network",
    "locks",
    "group",
    "ranks",
    "random init",
    "weights",
    "move",
    "tokens",
    "data",
    "workers",
    "compile",
    "evaluation",
    "saves",
    "logging",
    "set-up",
    "first step",
    "steps",
    "recording",
    "tail",
    "exit",
]
JobPhase = Literal["start", "steps", "end"]
_BOUNDARIES: Final[tuple[tuple[JobPhase, JobPartName, str], ...]] = (
    ("start", "launch", "process_unix_ns"),
    ("start", "interpreter", "capture_unix_ns"),
    ("start", "before torch", "torch_unix_ns"),
    ("start", "import torch", "imported_unix_ns"),
    ("start", "set-up", "first_step_unix_ns"),
    ("steps", "steps", "last_step_unix_ns"),
    ("end", "tail", "ended_unix_ns"),
)
_WITHOUT_A_STEP: Final[tuple[tuple[JobPhase, JobPartName, str], ...]] = (
    *_BOUNDARIES[:4],
    ("start", "set-up", "ended_unix_ns"),
)
"""A job that never took a step is set-up until its process ends."""
_SPLIT_OFF: Final[tuple[JobPartName, ...]] = (
    "imports", "commands", "network", "locks", "group", "ranks", "random init", "weights", "move", "tokens", "data",
    "workers", "compile", "evaluation", "saves", "logging",
)  # fmt: skip
_PART_OF: Final[dict[str, JobPartName]] = {name: name for name in _SPLIT_OFF} | {
    "code generation": "compile",
    "compilation": "compile",
    "metric": "evaluation",
    "checkpoint": "saves",
}
"""Kinds of work, and occasional work, with the part that counts them; all others count for the part around them."""


class JobPart(Result):
    """A part of the job in a phase of it (before the end of the first step, up to that of the last one, afterwards).

    ``ns`` is its time on the main thread.
    """

    part: JobPartName
    ns: int
    phase: JobPhase = "start"


class RankStart(Result):
    """The start of a rank: the time from the launch to the end of its first step, and its lines until then.

    ``waited_ns`` of it went by while process groups were formed or other ranks were waited for.
    """

    rank: int
    first_step_ns: int
    places: list[JobPlace]
    waited_ns: int = 0

    @property
    def own_ns(self) -> int:
        """The time without the waits."""
        return max(self.first_step_ns - self.waited_ns, 0)


class WholeJob(Result):
    """The job of the rank with the longest way to its first step, waits left out: the other ranks waited for it.

    The parts are in order and add up to ``wall_ns``. ``first_step_ns`` is the time from the launch to the end of the
    first step, ``None`` if no step ended; ``first_batch_ns`` that to the first batch. ``before_steps`` are the lines at
    which the main thread was found until the first step ended, ``within_steps`` those of other work than the model's
    until the last one did, and ``after_steps`` those afterwards, each the longest first.
    """

    rank: int
    wall_ns: int
    parts: list[JobPart]
    first_step_ns: int | None
    first_batch_ns: int | None = None
    waited_ns: int = 0
    """The part of ``first_step_ns`` in which process groups were formed, or other ranks were waited for."""
    ahead_ns: int = 0
    """Time by which the first rank was ready for its first step before this one."""
    before_steps: list[JobPlace] = msgspec.field(default_factory=list)
    within_steps: list[JobPlace] = msgspec.field(default_factory=list)
    after_steps: list[JobPlace] = msgspec.field(default_factory=list)
    used: list[str] | None = None
    """Packages that are at work in steps; ``None``: not known."""
    others: list[RankStart] = msgspec.field(default_factory=list)
    """The starts of the other ranks."""


def part_of(place: JobPlace) -> JobPartName | None:
    """The part that counts a place by its kind of work; ``None``: the part around it."""
    return _PART_OF.get(place.kind)


def whole_job(
    began_unix_ns: int, ended_unix_ns: int | None, ranks: Mapping[int, JobTimes], paused_ns: Mapping[int, int]
) -> WholeJob | None:
    """The ledger of the rank that was last to be ready for its first step; ``None`` where no rank has times.

    ``ended_unix_ns`` is when the launcher saw the command end; without it the ledger ends at the last known instant.
    ``paused_ns`` is, by rank, how long recording held the job up.
    """
    known = {rank: times for rank, times in ranks.items() if times.first_step_unix_ns is not None} or dict(ranks)
    if not known:
        return None
    rank = max(known, key=lambda one: ((known[one].first_step_unix_ns or 0) - _waited_ns(known[one]), -one))
    times = known[rank]
    parts = _parts(began_unix_ns, ended_unix_ns, times, paused_ns.get(rank, 0))
    first, batch = times.first_step_unix_ns, times.first_batch_unix_ns
    starts = {
        one: RankStart(
            rank=one,
            first_step_ns=max(at - began_unix_ns, 0),
            places=_longest(known[one].before_steps),
            waited_ns=_waited_ns(known[one]),
        )
        for one in known
        if (at := known[one].first_step_unix_ns) is not None
    }
    ready = [one.own_ns for one in starts.values()]
    return WholeJob(
        rank=rank,
        wall_ns=sum(part.ns for part in parts),
        parts=parts,
        first_step_ns=max(first - began_unix_ns, 0) if first is not None else None,
        first_batch_ns=max(batch - began_unix_ns, 0) if batch is not None and batch <= (first or batch) else None,
        waited_ns=_waited_ns(times),
        ahead_ns=max(ready) - min(ready) if ready else 0,
        before_steps=_longest(times.before_steps),
        within_steps=_longest(times.within_steps),
        after_steps=_longest(times.after_steps),
        used=times.used,
        others=[start for one, start in starts.items() if one != rank],
    )


def _waited_ns(times: JobTimes) -> int:
    """The time in which a rank formed groups or waited for others, before its first step ended."""
    return sum(times.before.get(kind, 0) for kind in ("group", "ranks"))


def _parts(began: int, ended: int | None, times: JobTimes, paused: int) -> list[JobPart]:
    at, parts = began, []
    open_at = _open_part(times) if times.ended_unix_ns is None else None
    for phase, name, boundary in _BOUNDARIES if times.first_step_unix_ns is not None else _WITHOUT_A_STEP:
        instant = ended if name == open_at else getattr(times, boundary)
        if instant is None:
            continue
        upto = max(min(instant, ended) if ended is not None else instant, at)
        parts.append(JobPart(part=name, phase=phase, ns=upto - at))
        at = upto
    if ended is not None:
        parts.append(JobPart(part="exit", phase="end", ns=max(ended - at, 0)))
    return [split for part in parts for split in _split(part, times, paused)]


def _open_part(times: JobTimes) -> JobPartName:
    """The part in which a process that did not end was when it was last seen: it lasts until the launcher's end."""
    if times.first_step_unix_ns is None:
        return "set-up"
    return "steps" if times.last_step_unix_ns is None or not times.after_steps else "tail"


def _split(part: JobPart, times: JobTimes, paused: int) -> list[JobPart]:
    """A part without the time that belongs to others, by looks at the main thread; together they are as long."""
    within: dict[JobPartName, int] = {}
    if part.part == "set-up":
        within = _by_part(times.before)
        within["first step"] = times.before.get(MODEL, 0)
    elif part.part == "steps":
        within = {**_by_part(times.within), "recording": paused}
    elif part.part == "tail":
        within = _by_part(by_kind(times.after_steps))
    looked = sum(within.values())
    if looked > part.ns:  # looks that overlap an instant
        within = {name: ns * part.ns // looked for name, ns in within.items()}
    rest = JobPart(part=part.part, phase=part.phase, ns=part.ns - sum(within.values()))
    found = [JobPart(part=name, phase=part.phase, ns=ns) for name, ns in within.items() if ns]
    order = list(get_args(JobPartName))
    return sorted([*found, rest], key=lambda one: order.index(one.part))


def _by_part(kinds: Mapping[str, int]) -> dict[JobPartName, int]:
    found: dict[JobPartName, int] = {}
    for kind, ns in kinds.items():
        if kind in _PART_OF:
            found[_PART_OF[kind]] = found.get(_PART_OF[kind], 0) + ns
    return found


def _longest(places: Sequence[JobPlace]) -> list[JobPlace]:
    return sorted(places, key=lambda place: (-place.ns, place.file, place.line, place.work, place.role))
