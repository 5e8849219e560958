"""The causes that a run shows, in the order of blame, and the sentence on top, which says whose fault it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import BLAMES, Finding
from whystall.serving.parts import TITLES, Part, residuals
from whystall.serving.predictions import SelfCheck
from whystall.serving.rules import RULES
from whystall.serving.run_analysis import Analysis

__all__ = ["Diagnosis", "diagnose"]

_MUCH: Final = 0.5
"""Share of the costliest finding that an earlier one in the order of blame needs to stand on top: with less, the
headline would be about the smaller half."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, the first of which is blamed, and the one sentence."""

    headline: str
    blame: str
    findings: tuple[Finding, ...]
    check: SelfCheck | None


def diagnose(analysis: Analysis) -> Diagnosis:
    """The diagnosis of a run."""
    case = Case(analysis)
    findings = _ordered([found for rule in RULES if (found := rule.find(case)) is not None])
    if findings:
        return Diagnosis(findings[0].headline, findings[0].cause.blame.value, findings, _check(case))
    blame, headline = _without_cause(case)
    return Diagnosis(headline, blame, (), _check(case))


def _check(case: Case) -> SelfCheck | None:
    return case.replayer.check if any(case.analysis.placed) else None


def _ordered(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings that cost much in the order of blame, costlier first in it; then the others."""
    most = max((one.cost_ns for one in found), default=0)
    return tuple(
        sorted(
            found,
            key=lambda one: (one.cost_ns < _MUCH * most, BLAMES.index(one.cause.blame), not one.certain, -one.gain_ns),
        )
    )


def _without_requests(case: Case) -> str:
    """The sentence where the server's counters alone say how long requests took."""
    means = case.analysis.means
    if means is None:
        return "No request of a client is here, so that nothing says what users waited for."
    largest = max(means.parts, key=lambda part: means.parts[part])
    time = means.parts[largest]
    return (
        f"No cause shows in the server's own files: a request takes {duration(means.total_ns)} there in the mean, and "
        f"the largest part is {TITLES[largest]}, {duration(time)} or {case.share(time):.0%}. The result of a client "
        "shows what its users waited for."
    )


def _without_cause(case: Case) -> tuple[str, str]:
    """The sentence where no cause is found: healthy needs the engine's steps, and names the largest part."""
    if not case.ledgers:
        return "unknown", _without_requests(case)
    largest = max(Part, key=case.mean)
    share, time = case.share(case.mean(largest)), duration(case.mean(largest))
    most = f"the largest part of a request is {TITLES[largest]}, {time} or {share:.0%}"
    if case.analysis.timeline is None:
        splits = residuals(case.settings.server)
        lacking = (splits[part] for one in case.ledgers for part in one.parts if part in splits)
        missing = sorted({flag for flags in lacking for flag in flags.split(" and ")})
        flags = f" Start the server with {' and '.join(missing)} to split it." if missing else ""
        return "unknown", f"No cause shows in these files; {most}.{flags}"
    return "healthy", f"Nothing is at fault: no cause takes a notable share; {most}."
