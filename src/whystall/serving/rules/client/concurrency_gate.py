"""The client's own limit of concurrent requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer, open_loop

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Requests that wait in the client for longer than a tenth of their time."""
    gate = case.mean(Part.CLIENT_GATE)
    if case.share(gate) < CAUSE.threshold("least_share") or case.run.client is None:
        return None
    queue = case.mean(Part.QUEUE)
    limit = case.run.client.max_concurrency
    allowed = "" if limit is None else f" (at most {limit:,} at a time)"
    return case.finding(
        CAUSE,
        f"The load generator is at fault, not the server: it holds a request back for {duration(gate)} in the mean"
        f"{allowed} before it sends it, and the server's queue takes {duration(queue)}.",
        gate,
        Evidence("wait in the client before sending, mean", gate, "ns"),
        Evidence("wait in the server's queue, mean", queue, "ns"),
        prediction=case.predict(_without_gate),
    )


def _without_gate(replayer: Replayer) -> Prediction | None:
    server = replace(replayer.server, max_concurrency=None)
    return replayer.predict(
        "requests sent when they are due", server=server, loads=lambda loads: open_loop(loads, replayer.gates_ns)
    )


RULE: Final = Rule(CAUSE, find)
