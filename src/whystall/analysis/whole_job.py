"""The ledger of a whole job: from the start of its launcher to the exit of its process, in parts that add up exactly.

All instants are on one clock of one machine. The time of a part whose end is unknown belongs to the part after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from whystall.analysis.results import Result
from whystall.run_folder.job_times import JobPlace, JobTimes

JobPartName = Literal[
    "launch",
    "interpreter",
    "before torch",
    "import torch",
    "imports",
    "set-up",
    "first step",
    "steps",
    "recording",
    "tail",
    "exit",
]
_BOUNDARIES: Final[tuple[tuple[JobPartName, str], ...]] = (
    ("launch", "process_unix_ns"),
    ("interpreter", "capture_unix_ns"),
    ("before torch", "torch_unix_ns"),
    ("import torch", "imported_unix_ns"),
    ("set-up", "first_batch_unix_ns"),
    ("first step", "first_step_unix_ns"),
    ("steps", "last_step_unix_ns"),
    ("tail", "ended_unix_ns"),
)


class JobPart(Result):
    """A part of the job and its time on the main thread."""

    part: JobPartName
    ns: int


class WholeJob(Result):
    """The job of the rank whose first step ended last: the other ranks waited for it.

    The parts are in order and add up to ``wall_ns``. ``first_step_ns`` is the time from the launch to the end of the
    first step, ``None`` if no step ended. ``before_steps`` and ``after_steps`` are the lines at which the main thread
    was found, the longest first.
    """

    rank: int
    wall_ns: int
    parts: list[JobPart]
    first_step_ns: int | None
    ahead_ns: int = 0
    """Time by which the first rank had its first step before this one."""
    before_steps: list[JobPlace] = msgspec.field(default_factory=list)
    after_steps: list[JobPlace] = msgspec.field(default_factory=list)


def whole_job(
    began_unix_ns: int, ended_unix_ns: int | None, ranks: Mapping[int, JobTimes], paused_ns: Mapping[int, int]
) -> WholeJob | None:
    """The ledger of the rank that was last to its first step; ``None`` where no rank has times.

    ``ended_unix_ns`` is when the launcher saw the command end; without it the ledger ends at the last known instant.
    ``paused_ns`` is, by rank, how long recording held the job up.
    """
    known = {rank: times for rank, times in ranks.items() if times.first_step_unix_ns is not None} or dict(ranks)
    if not known:
        return None
    rank = max(known, key=lambda one: (known[one].first_step_unix_ns or 0, -one))
    times = known[rank]
    parts = _parts(began_unix_ns, ended_unix_ns, times, paused_ns.get(rank, 0))
    first = times.first_step_unix_ns
    firsts = [one.first_step_unix_ns for one in known.values() if one.first_step_unix_ns is not None]
    return WholeJob(
        rank=rank,
        wall_ns=sum(part.ns for part in parts),
        parts=parts,
        first_step_ns=max(first - began_unix_ns, 0) if first is not None else None,
        ahead_ns=max(firsts) - min(firsts) if firsts else 0,
        before_steps=_longest(times.before_steps),
        after_steps=_longest(times.after_steps),
    )


def _parts(began: int, ended: int | None, times: JobTimes, paused: int) -> list[JobPart]:
    at, parts = began, []
    for name, boundary in _BOUNDARIES:
        instant = getattr(times, boundary)
        if instant is None:
            continue
        upto = max(min(instant, ended) if ended is not None else instant, at)
        parts.append(JobPart(part=name, ns=upto - at))
        at = upto
    if ended is not None:
        parts.append(JobPart(part="exit", ns=max(ended - at, 0)))
    return [split for part in parts for split in _split(part, times.imports_ns, paused)]


def _split(part: JobPart, imports: int, paused: int) -> Sequence[JobPart]:
    """A part without the time that belongs to another one: imports within the set-up, recording within the steps."""
    within = min(imports if part.part == "set-up" else paused if part.part == "steps" else 0, part.ns)
    if not within:
        return (part,)
    rest = JobPart(part=part.part, ns=part.ns - within)
    if part.part == "set-up":
        return JobPart(part="imports", ns=within), rest
    return rest, JobPart(part="recording", ns=within)


def _longest(places: Sequence[JobPlace]) -> list[JobPlace]:
    return sorted(places, key=lambda place: (-place.ns, place.file, place.line))
