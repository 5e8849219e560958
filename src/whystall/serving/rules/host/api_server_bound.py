"""The API server's process at the limit of its core."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """A full core, and time in front of and behind the engine."""
    seconds = case.run.counted("process_cpu_seconds")
    span = _load_seconds(case)
    if seconds is None or not span:
        return None
    outside = case.mean(Part.HTTP, Part.FRONT, Part.HTTP_AND_FRONT, Part.FRONT_AND_STEP_WAIT, Part.OUTPUT)
    cores = seconds / span
    if cores < CAUSE.threshold("least_cores") or case.share(outside) < CAUSE.threshold("least_share"):
        return None
    return case.finding(
        CAUSE,
        f"The host is at fault: the API server's process used {cores:.2f} of a core, and requests spend "
        f"{duration(outside)} outside of the engine.",
        outside,
        Evidence("cores that the process used", cores, "ratio"),
        Evidence("outside of the engine, mean", outside, "ns"),
    )


def _load_seconds(case: Case) -> float:
    """From the first request's sending to the last one's end."""
    requests = case.run.client.requests if case.run.client is not None else ()
    known = [(one.sent_ns, one.sent_ns + one.latency_ns) for one in requests if one.sent_ns is not None]
    return (max(end for _, end in known) - min(start for start, _ in known)) / 1e9 if known else 0.0


RULE: Final = Rule(CAUSE, find)
