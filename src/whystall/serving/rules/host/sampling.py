"""The choice of tokens, where no logits processor of the user's own runs."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """A long time between the forward pass and the chosen tokens. With a device it may be the wait for it."""
    parts = case.run.step_parts
    if parts is None or parts.on_device or case.settings.logits_processors:
        return None
    of_step = parts.choosing_ns / max(parts.forward_ns + parts.choosing_ns + parts.engine_ns, 1)
    cost = case.mean(Part.DECODE, Part.ENGINE_GAP) * of_step
    least = CAUSE.threshold("least_of_step")
    if of_step < least or case.share(cost) < least:
        return None
    return case.finding(
        CAUSE,
        f"The host is at fault: choosing tokens takes {duration(parts.choosing_ns)} of each step, {of_step:.0%} of it, "
        f"and {duration(int(cost))} of a request.",
        cost,
        Evidence("from the forward pass to the chosen tokens, median", parts.choosing_ns, "ns"),
        Evidence("forward pass, median", parts.forward_ns, "ns"),
    )


RULE: Final = Rule(CAUSE, find)
