"""Words of a diagnosis that every format shares: findings, notes, plan, and causes not looked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whystall.diagnosis.evidence import WITHIN
from whystall.diagnosis.finding import Alternative, CodeLocation, Evidence, Finding, Gain, JobSaving, Plan, Remedy
from whystall.diagnosis.units import times
from whystall.report import format as fmt
from whystall.report.cause_chains import chain_of, followers
from whystall.report.names import clean, first_sentence, line_of_code, shorten
from whystall.report.pictures import PictureView, picture_of
from whystall.report.schema import Report
from whystall.report.vocabulary import SEVERITIES

_MOST_EVIDENCE = 8
_MOST_PLACES = 8
_MOST_PATCH_LINES = 24
_MOST_RANKS = 8
_MOST_REPAIRS = 2


@dataclass(frozen=True, slots=True)
class Fact:
    """One measured fact: its name, its value with a unit, and the event that shows it best."""

    what: str
    value: str
    example: str | None


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A place in the code, and its text."""

    where: str
    text: str | None
    share: str | None
    """Relative to the cause's time."""


@dataclass(frozen=True, slots=True)
class OtherRepair:
    """Another cause whose repair empties the same idle time, with its gain, its lines and its remedy."""

    id: str
    title: str
    gain: str
    places: tuple[CodeLine, ...]
    remedy: str
    patch: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """A finding in words, every name safe to show."""

    id: str
    title: str
    severity: str
    label: str
    scope: str | None
    gain: str | None
    saves: str | None
    method: str | None
    confidence: str
    evidence: tuple[Fact, ...]
    strongest: tuple[Fact, ...]
    """Two of these at most, in their order: the longest time, and the first other one."""
    places: tuple[CodeLine, ...]
    nowhere: str | None
    """Why no place is named, where there are stacks."""
    remedy: str | None
    advice: str | None
    """The first sentence of the remedy."""
    patch: tuple[str, ...]
    risk: str | None
    command: str | None
    expect: str | None
    instead: tuple[OtherRepair, ...]
    """Other repairs of the same loss."""
    rejected: tuple[tuple[str, str], ...]
    missing: str | None
    """The signals that would raise confidence, and the alternatives that they would rule out."""
    picture: PictureView | None
    section: tuple[str, str] | None
    """The section that shows a cause without a picture of a step, and the words of a link to it."""
    chain: tuple[str, ...]
    """Consequences of the finding, from its line of code to the waiting ranks; empty if there are none."""
    place: int | None
    """Its place among the report's findings, if it has a place in a recording."""

    @property
    def facts(self) -> tuple[str, ...]:
        """Short phrases beside the title."""
        worth = f"{self.gain}{f', saves {self.saves}' if self.saves else ''}" if self.gain else None
        return tuple(phrase for phrase in (self.scope, worth, f"confidence {self.confidence}") if phrase)


@dataclass(frozen=True, slots=True)
class PlanView:
    """Causes in the order in which to remove them, each with the speed-up reached by then."""

    steps: tuple[tuple[str, str], ...]

    @property
    def sentence(self) -> str:
        """The plan in a sentence."""
        names = [name for name, _ in self.steps]
        return f"Fix {', then '.join(names)}: {self.steps[-1][1]} together"


@dataclass(frozen=True, slots=True)
class Undecided:
    """A signal that was not recorded, and the causes that need it."""

    needs: str
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsView:
    """The whole diagnosis: findings to fix, notes, and its certainty."""

    named: tuple[FindingView, ...]
    notes: tuple[FindingView, ...]
    omitted: int
    plan: PlanView | None
    undecided: tuple[Undecided, ...]
    basis: str | None
    """The base of gains."""
    small_print: tuple[str, ...]
    hindered: int
    """How many causes could not be looked for because the recording lacks a signal; others need more ranks or a run."""

    @property
    def undecided_causes(self) -> int:
        """How many causes could not be looked for."""
        return len({cause for one in self.undecided for cause in one.causes})


def findings_view(report: Report, most: int) -> FindingsView:
    """The findings of a report, with limits on those to fix and those to know."""
    one_rank = len(report.source.ranks) < 2 and len(report.run) < 2

    def view(placed: tuple[int, Finding]) -> FindingView:
        place, finding = placed
        return _finding(finding, place, report, one_rank=one_rank)

    named = [one for one in enumerate(report.findings) if one[1].severity != "info"]
    told = [id(link) for _, root in named[:most] for link in followers(root, report)]  # as links of a chain
    notes = [one for one in enumerate(report.findings) if one[1].severity == "info" and id(one[1]) not in told]
    return FindingsView(
        named=tuple(map(view, named[:most])),
        notes=tuple(map(view, notes[:most])),
        omitted=max(len(named) - most, 0) + max(len(notes) - most, 0),
        plan=_plan(report.plan),
        undecided=_undecided(report),
        basis=_basis(report),
        small_print=_small_print(report),
        hindered=_hindered(report),
    )


def gain_words(gain: Gain) -> str:
    """A gain with its interval.

    >>> gain_words(Gain(floor=1.239, expected=1.28, ceiling=1.317, method=""))
    '1.28x (1.24 to 1.32)'
    """
    return f"{_times(gain.expected)} ({times(gain.floor)} to {times(gain.ceiling)})"


def job_saving_words(saves: JobSaving) -> str:
    """The saving of a cause outside of steps.

    >>> job_saving_words(JobSaving(floor_ns=10**9, expected_ns=2 * 10**9, ceiling_ns=3 * 10**9, first_step_ns=10**9))
    'the job ends 2.00 s sooner (1.00 s to 3.00 s), its first step 1.00 s'
    """
    span = f"{fmt.duration(saves.floor_ns)} to {fmt.duration(saves.ceiling_ns)}"
    first = f", its first step {fmt.duration(saves.first_step_ns)}" if saves.first_step_ns else ""
    return f"the job ends {fmt.duration(saves.expected_ns)} sooner ({span}){first}"


def _times(speedup: float) -> str:
    return f"{times(speedup)}x"


def value_words(value: float | str, unit: str) -> str:
    """A measured value as people read it.

    >>> value_words(33_300_000, "ns"), value_words(0.2794, "share"), value_words(1536, "bytes"), value_words(4458, "")
    ('33.3 ms', '27.9 %', '1.50 KiB', '4,458')
    """
    if isinstance(value, str):
        return f"{clean(value, 120)} {clean(unit, 40)}".strip()
    if unit == "ns":
        return fmt.duration(round(value))
    if unit == "share":
        return fmt.share(value)
    if unit == "bytes":
        return fmt.size(round(value))
    if unit == "bytes/s":
        return fmt.rate(value, "B/s")
    amount = fmt.count(value) if isinstance(value, int) else fmt.quantity(value)
    return f"{amount} {clean(unit, 40)}".strip()


def _finding(finding: Finding, place: int, report: Report, *, one_rank: bool) -> FindingView:
    step_ns = report.verdict.step_ns
    remedy, proof = finding.remedy, finding.verify
    # An informative finding gains nothing by itself, or perhaps nothing, and its gain refers to no step: a speed-up
    # beside it would read as a promise.
    told = finding.gain is not None and finding.severity == "info" and finding.gain.step_ns is None
    gain = finding.gain if remedy is not None and not told else None
    return FindingView(
        id=clean(finding.id, 80),
        title=clean(finding.title, 300) or clean(finding.id, 80) or "Unnamed finding",
        severity=finding.severity,
        label=SEVERITIES[finding.severity],
        scope=_scope(finding, one_rank=one_rank),
        gain=gain_words(gain) if gain else job_saving_words(finding.saves) if finding.saves else None,
        saves=_saves(gain, gain.step_ns or step_ns) if gain else None,
        method=clean(gain.method, 200) or None if gain else None,
        confidence=f"{finding.confidence * 100:.0f} %",
        evidence=tuple(_fact(one) for one in finding.evidence[:_MOST_EVIDENCE]),
        strongest=tuple(map(_fact, _strongest(finding))),
        places=tuple(_place(one) for one in finding.code[:_MOST_PLACES]),
        nowhere=_nowhere(finding),
        remedy=clean(remedy.text, 600) if remedy else None,
        advice=first_sentence(clean(remedy.text, 600)) if remedy else None,
        patch=_patch(remedy),
        risk=clean(remedy.risk, 300) if remedy and remedy.risk else None,
        command=clean(proof.command, 300) if proof else None,
        expect=clean(proof.expect, 300) if proof else None,
        instead=tuple(map(_other_repair, finding.instead[:_MOST_REPAIRS])),
        rejected=tuple((clean(one.id, 80), clean(one.because, 200)) for one in finding.rejected[:8]),
        missing=_missing(finding),
        picture=(picture := picture_of(finding, gain, report)),
        section=_section(finding, report) if picture is None else None,
        chain=chain_of(finding, report),
        place=place if finding.shown else None,
    )


def _strongest(finding: Finding) -> list[Evidence]:
    """The longest time, one other fact, and without lines of code the annotation in which it happens."""
    evidence = finding.evidence[:_MOST_EVIDENCE]
    place = None if finding.code else next((one for one in evidence if one.what == WITHIN), None)
    spans = [one for one in evidence if one.unit == "ns" and not isinstance(one.value, str)]
    longest = max(spans, key=lambda one: float(one.value), default=None)
    other = next((one for one in evidence if one is not longest and one is not place), None)
    return [one for one in evidence if one is longest or one is other or one is place]


def _patch(remedy: Remedy | None) -> tuple[str, ...]:
    lines = remedy.patch.split("\n")[:_MOST_PATCH_LINES] if remedy and remedy.patch else []
    return tuple(clean(line.expandtabs(4), 160) for line in lines)


def _other_repair(one: Alternative) -> OtherRepair:
    return OtherRepair(
        id=clean(one.id, 80),
        title=clean(one.title, 300),
        gain=gain_words(one.gain),
        places=tuple(_place(place) for place in one.code[:_MOST_PLACES]),
        remedy=clean(one.remedy.text, 600),
        patch=_patch(one.remedy),
    )


def _section(finding: Finding, report: Report) -> tuple[str, str] | None:
    """The section for a cause without a picture; with several ranks the page may lack the memory of some."""
    ranks = {one.rank for one in report.memory}
    if finding.id.startswith("memory.") and len(ranks) == 1 and len(report.source.ranks) < 2:
        return f"r{ranks.pop()}-sec-memory", "Show the memory of the recording"
    return ("run", "Show the steps of the run") if report.run else None


def _missing(finding: Finding) -> str | None:
    signals = ", ".join(clean(signal, 80) for signal in finding.missing_signals[:8])
    others = " or ".join(clean(cause, 80) for cause in finding.could_be[:8])
    return f"{signals} (without, it may as well be {others})" if signals and others else signals or None


def _scope(finding: Finding, *, one_rank: bool) -> str | None:
    """Which ranks and steps, where that is not simply the only one."""
    ranks, steps = finding.scope.ranks, finding.scope.steps
    shown = ", ".join(map(str, ranks[:_MOST_RANKS]))
    more = f" and {len(ranks) - _MOST_RANKS:,} more" if len(ranks) > _MOST_RANKS else ""
    who = f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}" if ranks and not one_rank else None
    when = ", ".join(clean(step, 60) for step in steps[:3]) + (" and others" if len(steps) > 3 else "")
    return " · ".join(part for part in (who, when) if part) or None


def _saves(gain: Gain, step_ns: int | None) -> str:
    share = 1 - 1 / max(gain.expected, 1.0)
    beyond = ""
    if gain.adds is not None:
        adds = fmt.duration(round(step_ns * gain.adds)) if step_ns else fmt.share(gain.adds)
        beyond = f" ({adds} beyond the more specific causes)"
    if not step_ns:
        return f"{fmt.share(share)} of {'a step' if gain.of == 'step' else 'the recording'}{beyond}"
    whole = f"{fmt.duration(step_ns)} per step" if gain.of == "step" else f"the recording's {fmt.duration(step_ns)}"
    return f"{fmt.duration(round(step_ns * share))} of {whole}{beyond}"


_ALL: Final = 0.995
_NOTHING: Final = 0.005
_PER: Final = {None: "", "step": ", per step", "recording": ", in the recording"}


def _fact(evidence: Evidence) -> Fact:
    events = evidence.events
    longest = max(events, key=lambda event: event.duration_ns, default=None)
    example = f"{shorten(longest.name, 72) or '(no name)'}, {fmt.duration(longest.duration_ns)}" if longest else None
    return Fact(clean(f"{evidence.what}{_PER[evidence.per]}", 200), value_words(evidence.value, evidence.unit), example)


def _place(place: CodeLocation) -> CodeLine:
    where = line_of_code(clean(place.file, 160), place.line)
    share = fmt.share(place.share) if place.share is not None and place.share < _ALL else None
    return CodeLine(where, clean(place.symbol, 120) if place.symbol else None, share)


def _nowhere(finding: Finding) -> str | None:
    """A sentence for a cause that no few lines of the code explain."""
    if finding.code or finding.code_explains is None or finding.gain is None:
        return None
    if finding.code_explains < _NOTHING:
        return "Where in the code is not known: no recorded stack leads there."
    return f"Where in the code is not known: its three costliest lines take {fmt.share(finding.code_explains)} of it."


def _plan(plan: Plan | None) -> PlanView | None:
    if plan is None or not plan.causes:
        return None
    return PlanView(
        tuple((clean(cause, 80), _times(reached)) for cause, reached in zip(plan.causes, plan.speedups, strict=False))
    )


def _undecided(report: Report) -> tuple[Undecided, ...]:
    """The causes that could not be checked, by their missing signals; those whose signals free most come first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in report.abstained:
        groups.setdefault(tuple(one.missing_signals), []).append(clean(one.id, 80))
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Undecided(_joined(needs), tuple(ids)) for needs, ids in ordered)


def _hindered(report: Report) -> int:
    lacking = {signal.partition(" (")[0] for signal in report.source.missing_signals}
    return len({one.id for one in report.abstained if lacking.intersection(one.missing_signals)})


def _joined(signals: Sequence[str]) -> str:
    return " and ".join(clean(signal, 80) for signal in signals[:6]) or "another recording"


def _small_print(report: Report) -> tuple[str, ...]:
    """How far the numbers above may be trusted."""
    lines = []
    if report.fidelity is not None:
        lines.append(f"The dependencies that were replayed explain {fmt.share(report.fidelity)} of the time.")
    if report.noise is not None and (report.run or report.devices):
        lines.append(f"The length of a step is known to within {fmt.share(report.noise)}.")
    basis = _basis(report)
    return (*lines, basis) if basis else tuple(lines)


def _basis(report: Report) -> str | None:
    """The base of gains, where there are any."""
    if all(finding.severity == "info" for finding in report.findings):
        return None
    stepless = any(finding.gain is not None and finding.gain.of == "recording" for finding in report.findings)
    what = "the recording, in which no step is known" if stepless else "a step"
    return f"A gain is the speed-up of {what}: expected (floor to ceiling). Gains do not add up."
