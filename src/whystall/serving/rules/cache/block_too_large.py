"""A block size that is larger than the common prefix."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.reuse import reuse

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Tokens that smaller blocks would find."""
    seen = reuse(case.analysis)
    if seen is None or not seen.prompt_tokens:
        return None
    missed = (seen.leading_tokens - seen.in_blocks_tokens) / seen.prompt_tokens
    if missed < CAUSE.threshold("least_missed"):
        return None
    cost = case.mean(Part.OWN_PREFILL, Part.OTHERS_PREFILL, Part.STEP_WAIT) * missed
    return case.finding(
        CAUSE,
        f"The configuration is at fault: {missed:.0%} of the prompts' tokens are a common beginning that fills no "
        f"block of {case.settings.block_tokens:,} tokens; computing it again costs about {duration(int(cost))} a "
        "request.",
        cost,
        Evidence("shared from the beginning", seen.leading_tokens, "tokens"),
        Evidence("of these in full blocks", seen.in_blocks_tokens, "tokens"),
    )


RULE: Final = Rule(CAUSE, find)
