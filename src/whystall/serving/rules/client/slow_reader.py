"""Tokens that the client reads in heaps."""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Times between tokens that no engine makes, unless it drafts several at a time."""
    gaps = case.per_output_token_ns
    if not len(gaps) or case.settings.speculative:
        return None
    share = float(np.mean(gaps < CAUSE.threshold("short_ns")))
    if share < CAUSE.threshold("least_share"):
        return None
    late = outside_ns(case)
    if case.share(late) < CAUSE.threshold("least_outside"):
        return None
    return case.finding(
        CAUSE,
        f"The client is at fault, not the server: it reads tokens in heaps, {share:.0%} of them less than 0.1 ms after "
        f"the one before, and {duration(late)} of a request pass outside of the engine's steps.",
        late,
        Evidence("times between tokens below 0.1 ms", share, "share"),
        Evidence("outside of the engine, mean", late, "ns"),
    )


def outside_ns(case: Case) -> int:
    """Mean time of a request outside of steps; of a client alone, its time to first token beyond the server's."""
    counted = case.run.counted("time_to_first_token_seconds_sum")
    count = case.run.counted("time_to_first_token_seconds_count")
    if case.analysis.timeline is None and counted is not None and count:
        return case.mean(Part.BEFORE_FIRST_TOKEN) - round(counted / count * 1e9)
    return case.mean(Part.OUTPUT, Part.HTTP, Part.HTTP_AND_FRONT, Part.ENGINE_GAP)


RULE: Final = Rule(CAUSE, find)
