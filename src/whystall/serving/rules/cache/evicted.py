"""Prefixes that were evicted before their next use."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.reuse import reuse

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Full blocks that were there and are gone."""
    seen = reuse(case.analysis)
    if seen is None or not seen.prompt_tokens or case.settings.prefix_caching is False:
        return None
    missed = (seen.in_blocks_tokens - seen.found_tokens) / seen.prompt_tokens
    if missed < CAUSE.threshold("least_missed"):
        return None
    cost = case.mean(Part.OWN_PREFILL, Part.OTHERS_PREFILL, Part.STEP_WAIT, Part.QUEUE) * missed
    return case.finding(
        CAUSE,
        f"The configuration is at fault: {missed:.0%} of the prompts' tokens had been computed in full blocks and were "
        f"no longer in the cache; computing them again costs about {duration(int(cost))} a request.",
        cost,
        Evidence("in full blocks before", seen.in_blocks_tokens, "tokens"),
        Evidence("found in the cache", seen.found_tokens, "tokens"),
    )


RULE: Final = Rule(CAUSE, find)
