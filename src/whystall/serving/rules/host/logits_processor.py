"""A logits processor of the user's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer
from whystall.serving.records import StepParts

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """A processor in the settings, with the time that a worker's trace shows, or else with a fixed cost of steps."""
    if not case.settings.logits_processors:
        return None
    parts = case.run.step_parts
    return _by_cost(case) if parts is None or parts.on_device else _by_trace(case, parts)


def _by_trace(case: Case, parts: StepParts) -> Finding | None:
    """The time between the forward pass and the last operator that chooses tokens."""
    whole = parts.forward_ns + parts.choosing_ns + parts.engine_ns
    of_step = parts.choosing_ns / max(whole, 1)
    cost = case.mean(Part.DECODE, Part.ENGINE_GAP) * of_step
    if of_step < CAUSE.threshold("least_of_traced") or case.share(cost) < CAUSE.threshold("least_of_traced"):
        return None
    return case.finding(
        CAUSE,
        f"The host is at fault: in each step {duration(parts.choosing_ns)} pass between the forward pass and the "
        f"chosen tokens, {of_step:.0%} of a step, where a logits processor of your own runs; that is "
        f"{duration(int(cost))} a request.",
        cost,
        Evidence("from the forward pass to the chosen tokens, median", parts.choosing_ns, "ns"),
        Evidence("forward pass, median", parts.forward_ns, "ns"),
        Evidence("engine until the next step, median", parts.engine_ns, "ns"),
        prediction=case.predict(lambda replayer: _without(replayer, parts.choosing_ns)),
    )


def _without(replayer: Replayer, saved_ns: int) -> Prediction | None:
    """All of that time saved: the largest gain that a faster processor can give."""
    return replayer.predict(
        "no time between the forward pass and the chosen tokens (at most)",
        model=lambda model: replace(model, step_ns=max(model.step_ns - saved_ns, 0.0)),
    )


def _by_cost(case: Case) -> Finding | None:
    """Steps whose cost depends on nothing that they compute: a hint, and no proof."""
    model, steps = case.analysis.model, case.analysis.steps
    decode = next((one for one in steps.kinds if one.kind == "decode"), None) if steps is not None else None
    if model is None or decode is None or not decode.median_ns:
        return None
    of_step = min(model.step_ns / decode.median_ns, 1.0)
    cost = case.mean(Part.DECODE, Part.GENERATION) * of_step
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
