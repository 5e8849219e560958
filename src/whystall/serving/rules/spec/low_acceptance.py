"""Drafts that cost more than they give."""

from __future__ import annotations

from typing import Final

from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Drafts below their break-even: a step with them takes longer than their accepted tokens save."""
    counted = case.run.counted
    drafts = counted("spec_decode_num_drafts")
    drafted, accepted = counted("spec_decode_num_draft_tokens"), counted("spec_decode_num_accepted_tokens")
    model, steps = case.analysis.model, case.run.iterations
    if not drafts or drafted is None or accepted is None or model is None or steps is None or not len(steps):
        return None
    rows = float(steps.generation_requests.sum()) / len(steps)
    usual = model.of(0, max(rows, 1.0))
    slower = 1.0 + model.token_ns * drafted / drafts * rows / max(usual, 1.0)
    faster = 1.0 + accepted / drafts
    if drafts < CAUSE.threshold("least_requests") or faster >= slower:
        return None
    spent = case.mean(Part.DECODE, Part.GENERATION, Part.AFTER_FIRST_TOKEN)
    cost = spent * (1.0 - faster / slower)
    return case.finding(
        CAUSE,
        f"The configuration is at fault: {accepted / max(drafted, 1):.0%} of drafted tokens are accepted, so that a "
        f"step gives {faster:.2f} tokens and takes {slower:.2f} times as long.",
        cost,
        Evidence("accepted of drafted tokens", accepted / max(drafted, 1), "share"),
        Evidence("tokens a step", faster, "ratio"),
        Evidence("time of a step over one without drafts", slower, "ratio"),
    )


RULE: Final = Rule(CAUSE, find)
