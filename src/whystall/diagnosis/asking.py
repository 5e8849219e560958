"""Asking the rules.

It determines the signals of a case, the candidates of each rule's finders, and the causes that stay unjudged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from whystall.diagnosis.candidate import Candidate
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import Abstention
from whystall.diagnosis.rule import Finder, Rule
from whystall.vocabulary.signals import SIGNALS, Signal

# Causes that depend on PyTorch's threads between launches: those of XLA launch by themselves, and the time between
# their calls is not recorded.
_OF_PYTORCH_HOST: Final = ("capture.", "episodic.", "host.", "inference.", "input.", "memory.", "pipeline.")


@dataclass(frozen=True, slots=True)
class Answers:
    """The rules' candidates, the causes that no finder could look for, and the rules that failed."""

    candidates: list[Candidate] = field(default_factory=list)
    abstained: list[Abstention] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def ask(case: Case, rules: Sequence[Rule]) -> Answers:
    """Asks every rule about a case. It abstains from a cause only if none of the cause's finders could look."""
    have = available(case)
    answers = Answers()
    for rule in rules:
        if not case.may_be_pytorch and rule.cause.id.startswith(_OF_PYTORCH_HOST):
            answers.abstained.append(Abstention(id=rule.cause.id, missing_signals=[SIGNALS["operators"].name]))
            continue
        able = [finder for finder in rule.finders if have.issuperset(finder.needs)]
        for finder in able:
            try:
                answers.candidates.extend(_own(rule, candidate) for candidate in finder.find(case))
            except Exception as error:  # noqa: BLE001 - a recording that one rule stumbles over has others to say something
                answers.failures.append(f"the rule for {rule.cause.id} failed ({type(error).__name__}: {error})")
        if not able:
            answers.abstained.extend(_abstention(rule, have))
    return answers


def _own(rule: Rule, candidate: Candidate) -> Candidate:
    if candidate.cause != rule.cause.id:
        raise ValueError(f"it proposed {candidate.cause}, which is another rule's to find")
    return candidate


def _abstention(rule: Rule, have: frozenset[Signal]) -> list[Abstention]:
    """The signals that a rule lacks: those of the finder that lacks fewest, among finders that apply to such a job."""
    lacking = [missing for finder in rule.finders if _concerns(missing := _missing(finder, have), have)]
    if not lacking:
        return []
    return [Abstention(id=rule.cause.id, missing_signals=[SIGNALS[one].name for one in min(lacking, key=len)])]


def _missing(finder: Finder, have: frozenset[Signal]) -> list[Signal]:
    return [signal for signal in finder.needs if signal not in have]


def _concerns(missing: Sequence[Signal], have: frozenset[Signal]) -> bool:
    """Whether a finder speaks of such a job: one of accelerators speaks of no job that launches nothing on any."""
    return "no_device" not in missing and ("device_events" not in missing or "launch_calls" in have)


def available(case: Case) -> frozenset[Signal]:
    """The signals that a case has. A trace without anything to replay is none."""
    found: set[Signal] = {"samples"} if case.runs else set()
    if case.facts.job is not None:
        found.add("job")
    # Where a trace shows launches, there was a device whose events were lost.
    if not any(rank.on_device or rank.analysis.signals.get("launch_calls") for rank in case.ranks):
        found.add("no_device")
    if not case.ranks or case.graph is None:
        return frozenset(found)
    found.add("trace")
    if len(case.ranks) > 1:
        found.add("several_ranks")
    if any(row.peak is not None for rank in case.ranks for row in rank.analysis.efficiency):
        found.add("peak")
    recorded = {key for rank in case.ranks for key, there in rank.analysis.signals.items() if there}
    return frozenset(found | {signal for signal in SIGNALS if signal in recorded})
