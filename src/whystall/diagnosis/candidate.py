"""A rule's proposal: a cause with its evidence, and the run without it. Each kind weighs itself.

`Replayed` is worth the time that the graph of the recorded steps saves without it, `Sampled` is measured by samples of
the whole run (or a formula), and `Standing` costs something other than a step's time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Final, Self, TypeVar

import numpy as np

from whystall.diagnosis.case import Case
from whystall.diagnosis.evidence import time
from whystall.diagnosis.finding import CodeLocation, Evidence, JobSaving, Per, Remedy, Severity
from whystall.diagnosis.gains import CPU_ERROR, CPU_MORE, MODEL_ERROR, MOST_SAVED, REMOVED_ERROR, saved_by, scaled
from whystall.replay.graph import Change, Mask

# Doubts are calibrated on cases that no rule was made on (`docs/accuracy-diagnosis.md`, "Confidence").
_JUDGED_DOUBT: Final = 0.3
_OF_DOUBT: Final = 0.5


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How often something happened in the replayed window, and how many steps lie between two times (if known)."""

    count: int
    period: float | None

    def weight(self, steps: int) -> float:
        """Its mean frequency over ``steps`` steps, relative to that in this window."""
        return steps / self.period / self.count if self.period is not None and self.count else 1.0

    @property
    def spread(self) -> float:
        """How far off the count may be, as a share: another window may have seen it more or less often."""
        return 0.5 / sqrt(max(self.count, 1))


@dataclass(frozen=True, slots=True)
class Code:
    """The lines of code in which a cause spends its time, and the share of it that they explain (``None``: unknown).

    Lines that explain too little are left out, and the share stays.
    """

    lines: tuple[CodeLocation, ...] = ()
    explains: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A cause that may be at work, on some ranks and steps, and the evidence for it."""

    cause: str
    attributed_ns: int
    evidence: tuple[Evidence, ...]
    method: str = ""
    code: Code = Code()
    ranks: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()
    confidence: float = 0.9
    rivals: tuple[str, ...] = ()
    """Causes with the same symptom, which were weighed against this one."""
    missing: tuple[str, ...] = ()
    could_be: tuple[str, ...] = ()
    """Causes that it cannot be separated from while these signals are missing."""
    detail: str = ""
    """An addition to the title in this case."""
    remedy: Remedy | None = None
    """The change to make in this job, where it is another than that of the cause's entry."""
    overrules: bool = False
    """The recording of these ranks covers recurring work too thinly for any other finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing(Candidate):
    """A cause that costs something other than a step's time: it has a severity, and no gain."""

    severity: Severity
    nodes: Mask | None = None
    """The nodes of the graph that show it, if any."""
    saves: JobSaving | None = None
    """The time that its removal saves outside of steady steps."""
    by_others: bool = False
    """Other programs cause it: no change of the job removes it, so there is nothing to verify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Valued(Candidate):
    """A cause whose removal makes the step shorter: the common part of `Replayed` and `Sampled`."""

    removal: Change | None = None
    """The graph as the remedy would leave it; ``None`` where only samples know the cause."""
    tier: int = 0
    """A general cause (1, 2, ...) explains the time that more specific ones leave; it ranks by the gain that it adds.
    """
    least_share: float = 0.0
    """The share of a step from which it is named, if larger than the general limit."""
    if_hidden: str | None = None
    """The sentence for a large cause whose removal gains nothing; ``None``: no sentence."""
    symptom_of: tuple[str, ...] = ()
    """Families of causes that have it as a symptom where one of them is at work on the same rank alone."""
    holds_back: bool = False
    """It keeps the host from running ahead: other host work may cost time only because of it."""
    needs_first: tuple[str, ...] = ()
    """Causes that must be removed before its own remedy can be applied: it is no other repair of their loss."""
    nameless: bool = False
    """An unidentified cost: ``if_hidden`` describes it, and other causes count by the gain that they add."""

    def per(self, case: Case) -> Per:
        """The span that its gain relates to."""
        raise NotImplementedError

    def noise(self, case: Case) -> float:
        """The part of a saving that may be chance: the noise of the mean step."""
        return case.noise

    def span_ns(self, case: Case) -> int:
        """The length of that, recorded or measured."""
        raise NotImplementedError

    def explained(self, case: Case) -> float:
        """How much of the recording that it rests on the graph explains."""
        return case.fidelity.share

    def certainty(self, case: Case) -> float:
        """The likelihood that it is the cause: its rule's confidence, as far as the graph explains the recording."""
        return self.confidence * self.explained(case)

    def weigh(self, case: Case, removed: Change | None) -> Weighed:
        """The saving of its removal, and its additional saving after ``removed``."""
        raise NotImplementedError

    def united(self, case: Case, others: list[Self]) -> Self:
        """One candidate for the same cause on several ranks; this one has the largest cost."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(Valued):
    """A cause whose gain is replayed.

    ``removal`` is as its remedy would leave the graph, ``ceiling`` removes it wholly.
    """

    ceiling: Change | None = None
    floor: Change | None = None
    """The least effect of the remedy, where it is known better than by ``uncertainty``."""
    uncertainty: float = 0.15
    """The share of the saving that the remedy may fail to bring."""
    largest_share: float = 1.0
    """Its share of the step in samples of the whole run: an upper limit of its gain."""
    recurrence: Recurrence | None = None
    """Set for causes that do not occur in every step."""

    def per(self, case: Case) -> Per:
        """A step, if the recording has steps."""
        return case.per

    def noise(self, case: Case) -> float:
        """The noise of the steps as recorded, or of their rest after the remedy."""
        return case.noise if self.removal is None else min(case.noise, case.noise_after(self.removal))

    def span_ns(self, case: Case) -> int:
        """The mean length of a replayed step; without steps that of the recording."""
        return case.step_ns

    def certainty(self, case: Case) -> float:
        """Calibrated: for confidences of 70 % and more about devices, half of the doubt was too much."""
        doubt = 1 - self.confidence
        if doubt <= _JUDGED_DOUBT and any(rank.on_device for rank in case.ranks):
            doubt *= _OF_DOUBT
        return (1 - doubt) * self.explained(case)

    def weigh(self, case: Case, removed: Change | None) -> Weighed:
        """Its gain by replay, with the uncertainty of the replay and the remedy on both sides."""
        before = max(case.window_ns, 1)
        again = self.recurrence
        weight, spread = (again.weight(case.steps), again.spread) if again is not None else (1.0, 0.0)
        expected = min(scaled(saved_by(case, self.removal, before), weight), self.largest_share)
        ceiling = scaled(saved_by(case, self.ceiling, before), weight) if self.ceiling is not None else expected
        unsure = self.noise(case) + (1 - case.fidelity.share)
        floor = scaled(expected, 1 - max(self.uncertainty, spread)) - unsure
        if self.floor is not None:
            floor = min(floor, saved_by(case, self.floor, before) - unsure)
        if again is None:
            expected = min(max(expected, _unrecorded(case, self.removal, expected)), self.largest_share)
            ceiling = max(ceiling, _unrecorded(case, self.ceiling or self.removal, ceiling))
        more = min(scaled(expected, 1 + REMOVED_ERROR), self._at_most(case), self.largest_share)
        ceiling = max(min(ceiling, self.largest_share), scaled(expected, 1 + spread), more)
        on_device = any(rank.on_device for rank in case.ranks)
        floor *= 1.0 if on_device else 1 - CPU_ERROR
        ceiling = min(ceiling + (1 - ceiling) * (unsure + (MODEL_ERROR if on_device else CPU_MORE)), MOST_SAVED)
        return Weighed(self, max(floor, 0.0), expected, ceiling, self._added(case, removed, expected))

    def _at_most(self, case: Case) -> float:
        """The saving if threads and streams never waited."""
        return 0.0 if self.removal is None else 1 - case.least_ns(self.removal) / max(case.window_ns, 1)

    def _added(self, case: Case, removed: Change | None, alone: float) -> float:
        """Its saving, as a share of the step, beyond changes made before."""
        if removed is None or self.removal is None:
            return alone
        left = case.length_ns(removed)
        added = (left - case.length_ns(removed.then(self.removal, case.replayed))) / max(case.window_ns, 1)
        return min(max(added, 0.0), self.largest_share)

    def united(self, case: Case, others: list[Replayed]) -> Replayed:
        """Ranks wait for each other: the cause is removed on all of them at once, or on those that delay the others.

        The cost of general causes (``tier``) comes from symptoms, which ranks have of each other.
        """
        every = self._removed_on(case, others)
        guilty = [one for one in others if one.attributed_ns >= _GUILTY * self.attributed_ns]
        if self.tier or len(guilty) == len(others) or not self.cause.startswith(OF_ONE_RANK):
            return every
        these, before = self._removed_on(case, guilty), max(case.window_ns, 1)
        if saved_by(case, these.removal, before) <= _MOST * saved_by(case, every.removal, before):
            return every
        least = max(one.attributed_ns for one in others if one not in guilty)
        beside = time("the same on any other rank, at most", least, per=case.per)
        return replace(these, evidence=(*these.evidence, beside))

    def _removed_on(self, case: Case, others: list[Replayed]) -> Replayed:
        return replace(
            _on_all_ranks(self, others),
            removal=_all(case, [one.removal for one in others]),
            ceiling=_all(case, [one.ceiling for one in others]),
            floor=_all(case, [one.floor for one in others]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Valued):
    """A cause whose gain comes from samples: the shares of the step that go away at least, as expected, and at most."""

    saved: tuple[float, float, float]
    step_ns: int | None = None
    """The length of the step that ``saved`` is a share of; ``None``: the replayed one."""

    def per(self, case: Case) -> Per:
        """A step: samples measure no other span."""
        return "step" if self.step_ns is not None else case.per

    def span_ns(self, case: Case) -> int:
        """The mean length of the steps that were measured."""
        return self.step_ns or case.step_ns

    def noise(self, case: Case) -> float:
        """No noise of a recording's few steps: ``saved`` includes the uncertainty of the whole run already."""
        return 0.0 if self.step_ns is not None else case.noise

    def explained(self, case: Case) -> float:
        """All of it: samples of the whole run rest on no recording."""
        return 1.0 if self.step_ns is not None else case.fidelity.share

    def weigh(self, case: Case, removed: Change | None) -> Weighed:  # noqa: ARG002 - samples know nothing else
        """Its gain as measured."""
        floor, expected, ceiling = (min(max(share, 0.0), MOST_SAVED) for share in self.saved)
        return Weighed(self, min(floor, expected), expected, max(ceiling, expected), expected)

    def united(self, case: Case, others: list[Sampled]) -> Sampled:
        """The cost on the ranks that it costs most: the others wait for these.

        Without it the step still lasts as long as the other ranks' own work.
        """
        guilty = [one for one in others if one.saved[1] >= _GUILTY * self.saved[1]]
        floor = min(one.saved[0] for one in guilty)
        ceiling = max(one.saved[2] for one in guilty)
        found = replace(_on_all_ranks(self, others), saved=(floor, self.saved[1], ceiling))
        late = {rank for one in guilty for rank in one.ranks}
        work = [run.on_cpu_share for run in case.runs if run.rank not in late]
        if not work or found.step_ns is None:
            return found
        # Apparent work may be a wait that spins: then more may be gained.
        most = 1 - max(work)
        return replace(found, saved=(min(floor, _SURELY_LEFT * most), min(self.saved[1], most), ceiling))


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate with the shares of the step that its removal saves."""

    candidate: Valued
    floor: float
    expected: float
    ceiling: float
    adds: float
    """Its saving beyond the specific causes; for specific ones ``expected``."""
    tried: str = ""
    """The change that an experiment made to avoid it."""


_Kind = TypeVar("_Kind", bound=Valued)


OF_ONE_RANK: Final = ("host.", "input.", "episodic.", "memory.", "device.")
"""Families of causes that lie in one rank's own work, not in work of all ranks together or alike."""
_GUILTY: Final = 0.5
"""Ranks with less than this share of the largest cost wait for the rank that has it."""
_MOST: Final = 0.5
"""A cause is that of some ranks alone if fixing it there saves more than this share of the saving on all."""
_SURELY_LEFT: Final = 0.7
"""The certain part of the gain that the other ranks' own work allows: that work is sampled."""
_AT_WORK: Final = 0.1
"""A rank is named with a cause from this share of the largest cost on."""


def _unrecorded(case: Case, change: Change | None, saved: float) -> float:
    """The saved share of an unrecorded step, if ``saved`` is that of recorded ones.

    Recording lengthens each call of an operator by about the same time. If a change removes a few long calls, the
    remaining calls were lengthened, and the removed time was not.
    """
    longer, graph = case.recording_ns, case.replayed
    if not longer or change is None or change.duration is None:
        return saved
    inside = case.in_window(graph.duration > 0)
    left = np.asarray(change.duration, np.float64)[inside] / graph.duration[inside]
    calls = float((1 - np.clip(left, 0.0, 1.0)).mean()) if inside.any() else 0.0
    return min((saved * case.step_ns - longer * calls) / (case.step_ns - longer), MOST_SAVED)


def _on_all_ranks(worst: _Kind, others: list[_Kind]) -> _Kind:
    concerned = [one for one in others if one.attributed_ns >= _AT_WORK * worst.attributed_ns]
    alike = len({one.detail for one in concerned}) == 1
    # Stacks may be recorded on some ranks alone: these know the lines, and by them the remedy.
    known = worst if worst.code.lines else max(concerned, key=lambda one: (bool(one.code.lines), one is worst))
    return replace(
        worst,
        code=known.code,
        remedy=known.remedy,
        detail=worst.detail if alike else f"{worst.detail} (rank {worst.ranks[0]}; other ranks are similar)",
        ranks=tuple(sorted({rank for one in concerned for rank in one.ranks})),
        confidence=min(one.confidence for one in concerned),
    )


def _all(case: Case, changes: list[Change | None]) -> Change | None:
    """All changes at once, or none where one is missing."""
    joined: Change | None = None
    for change in changes:
        if change is None:
            return None
        joined = change if joined is None else joined.then(change, case.replayed)
    return joined
