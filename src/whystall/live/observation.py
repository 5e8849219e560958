"""Observations of a running process from outside, as plain numbers and stacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.vocabulary.frames import Frame

Stack = tuple[Frame, ...]
"""The frames of a thread, the outermost first."""


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """A thread's shares of the time it was watched for."""

    tid: int
    name: str
    on_core: float
    late: float
    """Ready, and waiting for a core; ``nan`` where the kernel does not count it."""
    on_disk: float
    """Share of the samples in an uninterruptible sleep, which is waiting for storage."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process's threads, its reads and writes, and its memory."""

    pid: int
    threads: tuple[ThreadUse, ...]
    resident_bytes: tuple[int, int]
    """At the begin and at the end."""
    read_bytes: int
    written_bytes: int

    @property
    def cores(self) -> float:
        """How many cores it kept busy on average."""
        return sum(thread.on_core for thread in self.threads)

    @property
    def wanted_cores(self) -> float:
        """How many it would have kept busy had others left it theirs: with the time that threads waited for a core."""
        return self.cores + sum(thread.late for thread in self.threads if not math.isnan(thread.late))

    def thread(self, tid: int) -> ThreadUse | None:
        """The thread with this number."""
        return next((one for one in self.threads if one.tid == tid), None)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the job's threads at once: the training thread's stack, whether it ran, and who held the GIL."""

    stack: Stack
    ran: bool
    holder: int | None


@dataclass(frozen=True, slots=True)
class Observation:
    """A process and its children, watched for ``seconds``."""

    pid: int
    seconds: float
    cores: int
    processes: Mapping[int, ProcessUse]
    training: int
    """The thread that trains, judging by stacks."""
    ticks: Sequence[Stack]
    """That thread's stacks, at equal distances."""
    looks: Sequence[Look]
    children: Mapping[int, Sequence[Stack]]
    """Stacks of other Python processes below it, their main threads'."""

    @property
    def job(self) -> ProcessUse:
        """The process itself."""
        return self.processes[self.pid]
