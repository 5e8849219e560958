"""Engines with unequal work."""

from __future__ import annotations

from typing import Final

from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside

CAUSE: Final = cause_beside(__name__)
_FEWEST: Final = 20  # requests an engine


def find(case: Case) -> Finding | None:
    """The busiest engine against the mean."""
    after, before = case.run.after, case.run.before
    if after is None or len(after.engines) < 2:
        return None
    counts = [count - (before.engines.get(name, 0.0) if before else 0.0) for name, count in after.engines.items()]
    mean = sum(counts) / len(counts)
    if mean < _FEWEST or max(counts) / mean < CAUSE.threshold("most"):
        return None
    cost = case.total_ns * (1.0 - mean / max(counts))
    return case.finding(
        CAUSE,
        f"The configuration is probably at fault: one of {len(counts)} engines finished {max(counts) / mean:.2f} times "
        "the mean number of requests.",
        cost,
        Evidence("busiest engine over the mean", max(counts) / mean, "ratio"),
        certain=False,
    )


RULE: Final = Rule(CAUSE, find)
