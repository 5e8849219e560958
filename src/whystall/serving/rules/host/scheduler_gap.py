"""The engine between its steps."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Gaps between steps that are not idle, unless the log times only the blocked part of steps."""
    steps = case.analysis.steps
    if steps is None or steps.gap_ns is None or case.settings.async_scheduling:
        return None
    share = steps.gap_ns / max(steps.busy_ns + steps.gap_ns, 1)
    gap = case.mean(Part.ENGINE_GAP)
    if share < CAUSE.threshold("least_share") or case.share(gap) < CAUSE.threshold("least_share"):
        return None
    count = sum(one.count for one in steps.kinds)
    return case.finding(
        CAUSE,
        f"The host is at fault: the engine spends {duration(steps.gap_ns // max(count, 1))} between two steps, "
        f"{share:.0%} of its working time, {duration(gap)} a request.",
        gap,
        Evidence("between two steps, mean", steps.gap_ns / max(count, 1), "ns"),
        Evidence("of steps and gaps", share, "share"),
    )


RULE: Final = Rule(CAUSE, find)
