"""Parts of a diagnosis: the finding, its gain, and the verdict on top (DESIGN, "report.json")."""

from __future__ import annotations

from typing import Literal

import msgspec

from whystall.vocabulary.dimensions import Dimension

Severity = Literal["info", "minor", "major", "critical"]
Per = Literal["step", "recording"]
"""The unit of an amount or a gain: the whole recording where no step is known."""


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Gain(_Result):
    """Speed-ups of the step (1.2 is 20 % more steps per second): floor <= expected <= ceiling."""

    floor: float
    expected: float
    ceiling: float
    method: str
    step_ns: int | None = None
    """The length that the speed-ups relate to: as recorded, or as measured by samples."""
    of: Per = "step"
    adds: float | None = None
    """The share of the step that it saves once the more specific causes are removed; ``None``: all that it saves."""


class JobSaving(_Result):
    """The time by which the job would be shorter, in all and until the end of its first step."""

    floor_ns: int
    expected_ns: int
    ceiling_ns: int
    first_step_ns: int
    """The part of the expected time by which the first step would end sooner."""


class EvidenceEvent(_Result):
    """One event of the trace that a finding rests on."""

    rank: int
    ts_ns: int
    duration_ns: int
    name: str


class Evidence(_Result):
    """One measured fact behind a finding."""

    what: str
    value: float | int | str
    unit: str
    events: list[EvidenceEvent] = []
    per: Per | None = None
    """The unit that ``value`` is an amount per; ``None``: the whole, or no amount."""


class CodeLocation(_Result):
    """Where in the user's code."""

    file: str
    line: int | None
    symbol: str | None
    share: float | None = None
    """The share of the cause's time that was spent there; ``None``: not known."""


class Rejected(_Result):
    """A cause that was considered and why it was not named."""

    id: str
    because: str


class Remedy(_Result):
    """A change to make."""

    text: str
    patch: str | None
    risk: str | None


class Verification(_Result):
    """How to prove that the remedy worked."""

    command: str
    expect: str


class Scope(_Result):
    """Which ranks and steps a finding speaks of."""

    ranks: list[int]
    steps: list[str]


class InStep(_Result):
    """Where in a step a cause is at work: the step that the timeline of a device draws.

    ``marks`` are begin and length, in ns from the step's begin, of the time that the remedy would change, in order and
    apart.
    """

    rank: int
    device: int
    step: str | None
    window_ns: int
    marks: list[tuple[int, int]]


class Alternative(_Result):
    """Another cause of the same loss: its own repair saves ``gain``, and nothing more beside that of the finding."""

    id: str
    title: str
    gain: Gain
    code: list[CodeLocation]
    remedy: Remedy


class Finding(_Result):
    """A named cause with evidence, gain, remedy, and the way to verify it."""

    id: str
    title: str
    severity: Severity
    scope: Scope
    attributed_ns_per_step: int
    gain: Gain | None
    confidence: float
    evidence: list[Evidence]
    code: list[CodeLocation]
    rejected: list[Rejected]
    missing_signals: list[str]
    remedy: Remedy | None
    verify: Verification | None
    could_be: list[str] = []
    """Causes that it cannot be separated from while these signals are missing."""
    because: str | None = None
    """The finding that it follows from: only the root of a chain carries the gain and the remedy."""
    code_explains: float | None = None
    """The share of the cause's time that the heaviest lines explain: below a half, ``code`` names none of them.

    ``None``: no lines were recorded.
    """
    in_step: InStep | None = None
    """Where in a step it is at work; ``None``: that is not known."""
    instead: list[Alternative] = []
    """Other repairs of the same loss."""
    saves: JobSaving | None = None
    """The time that its removal saves outside of steady steps; ``None``: not known."""

    @property
    def shown(self) -> bool:
        """Whether it points to a place in a recording."""
        return self.in_step is not None or any(one.events for one in self.evidence)


class Abstention(_Result):
    """A cause that could not be looked for, and the signals that would allow it."""

    id: str
    missing_signals: list[str]


class Plan(_Result):
    """Causes to remove one after the other, and the speed-up reached after each (replayed together, never added)."""

    causes: list[str]
    speedups: list[float]


class PathPart(_Result):
    """A part of the critical path: a kind of work or waiting, its time per step, and its share of the step.

    It is one longest chain; another may be just as long, so that only a replay gives the value of removing a part.
    """

    what: str
    per_step_ns: int
    share: float


class Blocking(_Result):
    """The delay of a step by collectives of one kind and parallel dimension; ``collective`` ``None``: of all kinds.

    ``transfer_ns`` is per step and rank, with the waiting for unrecorded ranks. A step would be ``blocking_ns`` shorter
    if transfers took no time, by the replay, in which late ranks stay late. ``group_size`` is of the largest group.
    """

    dimension: Dimension | None
    collective: str | None
    group_size: int | None
    calls_per_step: float
    transfer_ns: int
    blocking_ns: int


class Diagnosis(_Result):
    """The rules' results for a run.

    ``fidelity`` is the share of the replayed time that the dependency graph explains, ``noise`` the uncertainty of the
    mean step as a share of it.
    """

    findings: list[Finding] = []
    abstained: list[Abstention] = []
    plan: Plan | None = None
    fidelity: float | None = None
    noise: float | None = None
    failures: list[str] = []
    critical_path: list[PathPart] = []
    blocking: list[Blocking] = []


class Verdict(_Result):
    """The one sentence on top of a report, how it is known, and the device it speaks of (``None``: of none)."""

    summary: str
    cause: str | None
    gain: Gain | None
    confidence: float
    rank: int | None = None
    device: int | None = None
    step_ns: int | None = None
    """The length of a step, which gains are of; ``None``: not known."""
    basis: str = ""
    """The measured parts of the time: the basis of the sentence."""
