"""A logits processor of the user's own."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """A processor in the settings, and steps whose cost is fixed."""
    model, steps = case.analysis.model, case.analysis.steps
    if not case.settings.logits_processors or model is None or steps is None:
        return None
    decode = next((one for one in steps.kinds if one.kind == "decode"), None)
    if decode is None or not decode.median_ns:
        return None
    of_step = min(model.step_ns / decode.median_ns, 1.0)
    cost = case.mean(Part.DECODE) * of_step
    if of_step < CAUSE.threshold("least_of_step") or case.share(cost) < CAUSE.threshold("least_share"):
        return None
    return case.finding(
        CAUSE,
        f"The host is probably at fault: a logits processor of your own runs in each step, and "
        f"{duration(round(model.step_ns))} of a decode step of {duration(decode.median_ns)} depend on neither tokens "
        f"nor sequences, {case.share(cost):.0%} of a request's time.",
        cost,
        Evidence("fixed cost of a step", model.step_ns, "ns"),
        Evidence("median decode step", decode.median_ns, "ns"),
        Evidence("prompt token", model.token_ns, "ns"),
        certain=False,
    )


RULE: Final = Rule(CAUSE, find)
