"""Results of the compile account. Times are integer nanoseconds; files are named without their folders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Account",
    "Break",
    "CacheUse",
    "Compile",
    "CompileFinding",
    "Failure",
    "GraphRecordings",
    "KernelCompiler",
    "Phases",
    "Place",
    "ProcessAccount",
    "Recompile",
]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a file and the function that it is in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """The file and the line."""
        return f"{self.file}:{self.line}"


class KernelCompiler(StrEnum):
    """The program that turned generated code into kernels."""

    CPP = "C++ compiler"
    TRITON = "Triton"
    BOTH = "C++ compiler and Triton"
    UNKNOWN = "compiler of kernels"


@dataclass(frozen=True, slots=True)
class Phases:
    """The time of a compile by phase, each without the phases inside it: they add up to the total."""

    dynamo_ns: int = 0
    """Tracing the Python code, guards, and everything that is in no later phase."""
    aot_ns: int = 0
    """AOTAutograd: the joint graph, its partition, and looking it up in the cache."""
    inductor_ns: int = 0
    """Inductor: passes over the graph and its lowering."""
    code_ns: int = 0
    """Writing and loading the generated code."""
    kernels_ns: int = 0
    """The main thread's wait for the C++ compiler or Triton."""

    @property
    def total_ns(self) -> int:
        """The sum of all phases."""
        return self.dynamo_ns + self.aot_ns + self.inductor_ns + self.code_ns + self.kernels_ns


@dataclass(frozen=True, slots=True)
class Compile:
    """One compile of a frame, all attempts together, or of a backward graph when it first ran."""

    id: str
    backward: bool
    frame: Place | None
    caller: Place | None
    """The user's line that called the function when it was compiled."""
    attempts: int
    total_ns: int
    phases: Phases
    restarts_ns: int
    """The time of the attempts that a restart threw away; a part of the total."""
    kernels_by: KernelCompiler
    failed: str | None
    """The kind of failure after which the function runs as it is."""
    nested: bool
    """Whether it ran within another compile, whose total then holds it."""


@dataclass(frozen=True, slots=True)
class Break:
    """A line at which Dynamo ended a graph, for one reason."""

    place: Place | None
    called_at: Place | None
    """The user's line that led there, where the break is in other code."""
    reason: str
    hint: str | None
    page: str | None
    """The address of torch's page on it."""
    times: int
    """Compiles that broke there."""
    restarts_ns: int
    """The time of the attempts that it threw away."""
    resumes: int
    """Compiles of the function that resumes after it."""
    resumes_ns: int
    """Their time, with that of their backward graphs."""
    resumes_dynamo_ns: int
    """The part of ``resumes_ns`` in Dynamo, which a whole graph would not pay again."""


@dataclass(frozen=True, slots=True)
class Recompile:
    """Compiles of one function again, after one guard had failed."""

    frame: Place | None
    guard: str
    """The guard as it failed the first time, without values of texts; empty where the log does not hold it."""
    kind: str
    is_value: bool
    """Whether the compiled code was kept for one value of a number, a text or a flag."""
    line: Place | None
    """The user's line: that which made the guard, else the function, or its call where the function is torch's."""
    edit: str
    times: int
    versions: int
    """Versions of the function that were compiled in all."""
    total_ns: int
    at_limit: bool
    """Whether the function reached the limit of versions, and runs as it is for any other input."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The use of one cache."""

    cache: str
    hits: int
    misses: int
    bypasses: int
    bypass_reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Compiles that failed or were skipped: the function runs as it is."""

    frame: Place | None
    kind: str
    reason: str
    times: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class GraphRecordings:
    """CUDA graphs: recordings that the log shows, and reasons for which there were none."""

    recordings: int
    recording_ns: int
    skips: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CompileFinding:
    """A cause of compile time, with the seconds of one process that its removal saves at most."""

    id: str
    says: str
    where: str | None
    saves_ns: int
    edit: str
    known_by: str
    processes: int = 1
    """Processes with the same finding; ``saves_ns`` is that of the one that loses most."""


@dataclass(frozen=True, slots=True)
class ProcessAccount:
    """The compile account of one process."""

    file: str
    rank: int | None
    pid: int | None
    torch: str | None
    total_ns: int
    restarts_ns: int
    phases: Phases
    compiles: tuple[Compile, ...]
    breaks: tuple[Break, ...]
    recompiles: tuple[Recompile, ...]
    caches: tuple[CacheUse, ...]
    saved_ns: int | None
    """The time that hits of the cache saved, as torch estimates it."""
    failures: tuple[Failure, ...]
    cuda_graphs: GraphRecordings
    autotune_ns: int
    """The time of autotuning, within compiles and after them."""
    unfinished: int
    """Compiles that began and have no end in the log."""
    findings: tuple[CompileFinding, ...]

    @property
    def recompiled(self) -> int:
        """The number of recompiles."""
        return sum(one.times for one in self.recompiles)


@dataclass(frozen=True, slots=True)
class Account:
    """The accounts of all processes, that with most compile time first, and their findings together."""

    processes: tuple[ProcessAccount, ...]
    findings: tuple[CompileFinding, ...]
    notes: tuple[str, ...]
