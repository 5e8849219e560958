"""A GPU server without CUDA graphs."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """The setting, on a GPU, with a large fixed cost. The CPU platform has no graphs."""
    model = case.analysis.model
    if not case.settings.enforce_eager or case.settings.device in (None, "cpu") or model is None:
        return None
    steps = case.analysis.steps
    decode = next((one for one in steps.kinds if one.kind == "decode"), None) if steps is not None else None
    if decode is None or not decode.median_ns:
        return None
    cost = case.mean(Part.DECODE, Part.GENERATION) * min(model.step_ns / decode.median_ns, 1.0)
    if case.share(cost) < CAUSE.threshold("least_share"):
        return None
    return case.finding(
        CAUSE,
        "The configuration is probably at fault: --enforce-eager turns CUDA graphs off, and "
        f"{duration(round(model.step_ns))} of each step depend on neither tokens nor sequences.",
        cost,
        Evidence("fixed cost of a step", model.step_ns, "ns"),
        Evidence("median decode step", decode.median_ns, "ns"),
        certain=False,
    )


RULE: Final = Rule(CAUSE, find)
