"""A compile while the records of a log are read, and the room that is left for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from whystall.compilation.metrics import Times, phases_of
from whystall.compilation.payloads import BrokenAt, CacheRecord, Event
from whystall.compilation.results import Compile, KernelCompiler, Phases, Place

__all__ = ["OneCompile", "Room"]

_MOST_INTERVALS: Final = 1_024


@dataclass(slots=True)
class Room:
    """The room that is left for what the logs of a reading hold, so that no log takes the machine's memory."""

    compiles: int = 100_000
    notes: int = 400_000
    """Graph breaks, looks into caches, waits for compilers."""
    files: int = 200_000
    left_out: int = 0
    """Compiles and notes for which there was none."""

    def take_note(self) -> bool:
        """Whether there is room for a note, which then takes it."""
        self.notes -= 1
        self.left_out += self.notes < 0
        return self.notes >= 0


@dataclass(slots=True)
class OneCompile:
    """A compile while its records are read."""

    autograd_id: int | None
    frame_id: int | None
    version: int | None
    backward: bool
    attempts: int = 1
    frame: Place | None = None
    of_torch: bool = False
    """Whether the function is a wrapper of torch's around the user's."""
    callers: tuple[Place, ...] = ()
    times: Times | None = None
    start_ns: int | None = None
    phases: Phases = field(default_factory=Phases)
    guard: str = ""
    guarded_at: Place | None = None
    breaks: list[BrokenAt] = field(default_factory=list)
    restarts: list[BrokenAt] = field(default_factory=list)
    """The reasons of restarts, which are graph breaks without a line where nothing else records them."""
    caches: list[CacheRecord] = field(default_factory=list)
    graph: str = ""
    """The digests of the graphs that Dynamo made."""
    fail_kind: str = ""
    fail_reason: str = ""
    at_limit: bool = False
    cpp: bool = False
    triton: bool = False
    nested: bool = False
    open_events: dict[str, float] = field(default_factory=dict)
    intervals: list[tuple[float, float]] = field(default_factory=list)

    @property
    def total_ns(self) -> int:
        """The time of the compile; 0 where the log does not hold it."""
        return self.phases.total_ns

    @property
    def id(self) -> str:
        """The id as torch writes it."""
        one = f"{_number(self.frame_id)}/{_number(self.version)}"
        return one if self.autograd_id is None else f"!{self.autograd_id}/{one}"

    @property
    def kernels_by(self) -> KernelCompiler:
        """The program that made the kernels."""
        if self.cpp and self.triton:
            return KernelCompiler.BOTH
        return KernelCompiler.CPP if self.cpp else KernelCompiler.TRITON if self.triton else KernelCompiler.UNKNOWN

    @property
    def caller(self) -> Place | None:
        """The innermost of the user's lines that is not the compiled function itself."""
        own = self.frame
        others = [one for one in self.callers if own is None or (one.file, one.function) != (own.file, own.function)]
        return others[-1] if others else None

    @property
    def line(self) -> Place | None:
        """The line that a user would look at: the function, or the call where the function is torch's."""
        return (self.caller or self.frame) if self.of_torch else self.frame

    def result(self) -> Compile:
        """The compile as a result."""
        return Compile(
            id=self.id,
            backward=self.backward,
            frame=self.frame,
            caller=self.caller,
            attempts=self.attempts,
            total_ns=self.total_ns,
            phases=self.phases,
            restarts_ns=min(self.times.restarts_ns if self.times is not None else 0, self.total_ns),
            kernels_by=self.kernels_by,
            failed=(self.fail_kind or None) if not self.at_limit else "recompile limit",
            nested=self.nested,
        )

    def hear_kernels(self, event: Event, room: Room) -> None:
        """Takes in the begin or the end of a wait for a compiler."""
        if event.ph == "B":
            self.open_events[event.name] = event.ts
        elif event.ph == "E" and event.name in self.open_events:
            begin = self.open_events.pop(event.name)
            if len(self.intervals) < _MOST_INTERVALS and begin <= event.ts and room.take_note():
                self.intervals.append((begin, event.ts))

    def close(self, times: Times) -> None:
        """Takes in the times of the compile's metrics."""
        self.times = times
        self.start_ns = times.start_ns if times.start_ns is not None else self.start_ns
        waited_ns = round(_covered(self.intervals) * 1_000)
        total_ns = times.total_ns or 0
        self.phases = phases_of(times, total_ns, waited_ns, backward=self.backward)
        self.intervals = []
        self.open_events = {}


def _covered(intervals: list[tuple[float, float]]) -> float:
    """The length that intervals cover together."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        covered += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return covered


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)
