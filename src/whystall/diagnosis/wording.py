"""What is said of a step is said of the recording where no step is known."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.rule import Candidate

_PER_STEP: Final = re.compile(r"\b(per recorded|per|a) step\b")
_THE_STEP: Final = re.compile(r"\bthe step\b(?!s)")


def of_what(case: Case, candidate: Candidate) -> Literal["step", "recording"]:
    """What gains are of: samples measured steps; a replay without steps is of the recording."""
    return "step" if case.has_steps or candidate.step_ns is not None else "recording"


def told(case: Case, candidate: Candidate, text: str) -> str:
    """What is said of a step; where no step is known, of the recording."""
    if of_what(case, candidate) == "step":
        return text
    return _THE_STEP.sub("the recording", _PER_STEP.sub("in the recording", text))


def evidence_of(case: Case, candidate: Candidate) -> list[Evidence]:
    """A candidate's evidence, told of what its gains are of."""
    return [msgspec.structs.replace(one, what=told(case, candidate, one.what)) for one in candidate.evidence]
