"""The fate of the causes from one run to another: gone, new, or below the limit for a finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.finding import Abstention, Finding

CauseWord = Literal["gone", "new", "stays", "less", "more", "unknown"]
_SAID: Final[dict[CauseWord, str]] = {
    "gone": "gone",
    "less": "still there, and no longer worth removing",
    "new": "new",
    "more": "now worth removing",
    "unknown": "not looked for in the other",
}


class Judged(Protocol):
    """The compared part of a run."""

    @property
    def findings(self) -> Sequence[Finding]:
        """The findings, those of severity info among them."""

    @property
    def abstained(self) -> Sequence[Abstention]:
        """The causes that no finder looked for."""


class CauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """A cause that is worth removing in one of the runs, or in both.

    "less" and "more": the other run has it too, where it is worth too little to name or hidden. "unknown": the other
    run lacks the signals that would show it.
    """

    id: str
    title: str
    change: CauseWord
    base_gain: float | None
    candidate_gain: float | None


def cause_changes(base: Judged, candidate: Judged) -> list[CauseChange]:
    """Every cause that one of two runs names, those of the base first."""
    before, after = _told(base), _told(candidate)
    found = []
    for cause in dict.fromkeys((*named_causes(base), *named_causes(candidate))):
        known = causes().get(cause)
        found.append(
            CauseChange(
                id=cause,
                title=known.title if known is not None else cause,
                change=_change(cause, base, candidate),
                base_gain=before.get(cause),
                candidate_gain=after.get(cause),
            )
        )
    return found


def what_changed(changes: Sequence[CauseChange]) -> str:
    """The end of a sentence: which causes went, came, or are not known to have."""
    text = ""
    for word, said in _SAID.items():
        changed = [row.id for row in changes if row.change == word]
        text += f"; {said}: {', '.join(changed)}" if changed else ""
    return text


def _change(cause: str, base: Judged, candidate: Judged) -> CauseWord:
    in_base = cause in named_causes(base)
    other = candidate if in_base else base
    if cause in named_causes(other):
        return "stays"
    if cause in _told(other):
        return "less" if in_base else "more"
    if any(one.id == cause for one in other.abstained):
        return "unknown"
    return "gone" if in_base else "new"


def named_causes(run: Judged) -> list[str]:
    """The causes worth removing."""
    return [finding.id for finding in run.findings if finding.severity != "info"]


def _told(run: Judged) -> dict[str, float | None]:
    """The causes of the findings, with the expected gain; of two findings of one cause the first counts."""
    return {
        finding.id: finding.gain.expected if finding.gain is not None else None for finding in reversed(run.findings)
    }
