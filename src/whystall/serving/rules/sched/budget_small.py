"""A budget of tokens that cuts prompts into many chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.predictions import Prediction, Replayer
from whystall.serving.step_model import StepModel

CAUSE: Final = cause_beside(__name__)
_TIMES: Final = 4


def find(case: Case) -> Finding | None:
    """The fixed cost of the steps that a larger budget would not need."""
    model, budget = case.analysis.model, case.settings.max_num_batched_tokens
    timeline = case.analysis.timeline
    if model is None or budget is None:
        return None
    if not case.ledgers:
        return _by_steps(case, model, budget)
    if timeline is None:
        return None
    fixed = model.step_ns + timeline.usual_gap_ns
    chunks = [sum(not chunk.again for chunk in one.chunks) for one in case.analysis.placed if one is not None]
    cut = [count for count in chunks if count >= CAUSE.threshold("fewest_chunks")]
    cost = fixed * sum(count - 1 for count in cut) / max(len(case.ledgers), 1)
    if case.share(cost) < CAUSE.threshold("least_share"):
        return None
    return case.finding(
        CAUSE,
        f"The configuration is at fault: --max-num-batched-tokens {budget:,} cuts prompts into up to {max(cut)} "
        f"pieces, and the fixed cost of their steps is {duration(int(cost))} a request.",
        cost,
        Evidence("prompts in three pieces or more", len(cut), "count"),
        Evidence("fixed cost of a step", fixed, "ns"),
        remedy=f"Raise --max-num-batched-tokens (it is {budget:,}).",
        prediction=case.predict(lambda replayer: _larger(replayer, _TIMES * budget)),
    )


def _by_steps(case: Case, model: StepModel, budget: int) -> Finding | None:
    """Without requests: steps with prompts at a full budget, against the mean prompt in it."""
    steps, means = case.run.iterations, case.analysis.means
    if steps is None or means is None or means.prompt_tokens <= (CAUSE.threshold("fewest_chunks") - 1) * budget:
        return None
    full = (steps.context_requests > 0) & (steps.context_tokens + steps.generation_tokens >= budget)
    count = int(full.sum())
    cost = model.step_ns * count / means.requests
    if case.share(cost) < CAUSE.threshold("least_share"):
        return None
    return case.finding(
        CAUSE,
        f"The configuration is at fault: --max-num-batched-tokens {budget:,} cuts a prompt of "
        f"{means.prompt_tokens:,.0f} tokens, the mean, into {-(-means.prompt_tokens // budget):.0f} pieces, and the "
        f"fixed cost of their steps is {duration(int(cost))} a request.",
        cost,
        Evidence("steps with prompts at a full budget", count, "count"),
        Evidence("fixed cost of a step", model.step_ns, "ns"),
        remedy=f"Raise --max-num-batched-tokens (it is {budget:,}).",
    )


def _larger(replayer: Replayer, budget: int) -> Prediction | None:
    server = replace(replayer.server, max_num_batched_tokens=budget)
    return replayer.predict(f"--max-num-batched-tokens {budget}", server=server)


RULE: Final = Rule(CAUSE, find)
