"""Collections of garbage that stop the engine at regular numbers of steps."""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.step_model import prompt_tokens, sequences

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Outliers at regular distances."""
    steps, times, model = case.run.iterations, case.analysis.timeline, case.analysis.model
    if steps is None or times is None or model is None:
        return None
    usual = model.step_ns + model.token_ns * prompt_tokens(steps) + model.sequence_ns * sequences(steps)
    spent = np.maximum(steps.elapsed_ns, 1).astype(np.float64)
    slow = np.flatnonzero(spent >= CAUSE.threshold("slow") * np.maximum(usual, 1.0))
    if len(slow) < CAUSE.threshold("fewest"):
        return None
    between = np.diff(slow)
    over = float((spent[slow] - usual[slow]).sum())
    share = over / max(float(spent.sum()), 1.0)
    if between.std() / between.mean() > CAUSE.threshold("most_spread") or share < CAUSE.threshold("least_share"):
        return None
    cost = share * case.total_ns
    return case.finding(
        CAUSE,
        f"The host is probably at fault: every {between.mean():.0f} steps one takes up to "
        f"{duration(int(spent[slow].max()))}, as Python's collection of garbage does.",
        cost,
        Evidence("slow steps", len(slow), "count"),
        Evidence("steps between them, mean", float(between.mean()), "count"),
        Evidence("of the engine's working time", share, "share"),
        certain=False,
    )


RULE: Final = Rule(CAUSE, find)
