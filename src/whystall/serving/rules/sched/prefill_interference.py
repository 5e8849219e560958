"""Prefills of other requests in the steps of a request, and before its first."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer
from whystall.serving.step_model import prompt_tokens, sequences

CAUSE: Final = cause_beside(__name__)
_LEAST_BUDGET: Final = 64


def find(case: Case) -> Finding | None:
    """Long steps with prompts of others, in which a request decodes or for whose end it waits."""
    steps, engine = case.run.iterations, case.analysis.engine
    if steps is None or engine is None:
        return None
    tokens, rows = prompt_tokens(steps), sequences(steps)
    decode = steps.elapsed_ns[(tokens == 0) & (rows > 0)]
    if not len(decode):
        return None
    usual = float(np.median(decode))
    limit = CAUSE.threshold("long_steps") * usual
    is_long = (tokens > 0) & (steps.elapsed_ns >= limit)
    held = [
        engine.others_prefill_ns(placed, is_long) + _long_wait(ledger.of(Part.STEP_WAIT), limit)
        for ledger, placed in zip(case.ledgers, case.analysis.placed, strict=True)
        if placed is not None
    ]
    waited = sum(held) / max(len(held), 1)
    if not is_long.any() or case.share(waited) < CAUSE.threshold("least_share"):
        return None
    longest = int(steps.elapsed_ns[is_long].max())
    budget = _budget(case, tokens)
    return case.finding(
        CAUSE,
        f"The configuration is at fault: steps of up to {duration(longest)} with other requests' prompts hold a "
        f"request up for {duration(int(waited))}, {case.share(waited):.0%} of its time; a decode step takes "
        f"{duration(int(usual))}.",
        waited,
        Evidence("held up by others' long prefill steps, mean", waited, "ns"),
        Evidence("longest step", longest, "ns"),
        Evidence("median decode step", usual, "ns"),
        Evidence("prompt tokens of the largest step", float(tokens.max()), "tokens"),
        remedy=f"Lower --max-num-batched-tokens to about {budget:,}: a step then takes some ten decode steps at most. "
        "The prompts that are cut get their first token later.",
        prediction=case.predict(lambda replayer: _smaller(replayer, budget)),
    )


def _long_wait(wait_ns: int, limit: float) -> int:
    """The wait for the running step, if it was a long one: who comes at any time waits half of a step."""
    return wait_ns if wait_ns >= limit / 2 else 0


def _budget(case: Case, tokens: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """The power of two of tokens whose step takes about ten decode steps."""
    model = case.analysis.model
    most = int(tokens.max())
    if model is None or model.token_ns <= 0:
        return max(most // 8, _LEAST_BUDGET)
    room = CAUSE.threshold("long_steps") * model.of(0, 1) / model.token_ns
    return max(1 << int(min(room, most / 2)).bit_length() - 1, _LEAST_BUDGET)


def _smaller(replayer: Replayer, budget: int) -> Prediction | None:
    server = replace(replayer.server, max_num_batched_tokens=budget)
    return replayer.predict(f"--max-num-batched-tokens {budget}", server=server)


RULE: Final = Rule(CAUSE, find)
