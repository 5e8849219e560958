"""Bursts of arrivals at a server that has time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer
from whystall.serving.replay import Load

CAUSE: Final = cause_beside(__name__)
_FEWEST: Final = 20  # arrivals for a variance


def find(case: Case) -> Finding | None:
    """Dispersed arrivals, an engine that idles, and requests that wait for each other."""
    steps = case.analysis.steps
    load = None if steps is None else steps.load
    spread = dispersion(case)
    if load is None or spread is None or load >= CAUSE.threshold("most_load"):
        return None
    waited = case.mean(Part.STEP_WAIT, Part.QUEUE, Part.OTHERS_PREFILL)
    if spread < CAUSE.threshold("least_dispersion") or case.share(waited) < CAUSE.threshold("least_share"):
        return None
    return case.finding(
        CAUSE,
        f"The arrivals are at fault, not the server: requests come in bursts (variance {spread:.1f} times the mean) "
        f"and wait {duration(waited)} for each other, while the engine works {load:.0%} of the time.",
        waited,
        Evidence("index of dispersion of arrivals", spread, "ratio"),
        Evidence("load of the engine", load, "share"),
        Evidence("waits for other requests, mean", waited, "ns"),
        prediction=case.predict(_smoothed),
    )


def dispersion(case: Case) -> float | None:
    """Variance over mean of the number of arrivals per window; ``None`` for few arrivals or unknown times."""
    requests = case.run.client.requests if case.run.client is not None else ()
    sent = sorted(one.sent_ns - (one.gate_ns or 0) for one in requests if one.sent_ns is not None)
    if len(sent) < _FEWEST or sent[-1] == sent[0]:
        return None
    window = CAUSE.threshold("window") * (sent[-1] - sent[0]) / (len(sent) - 1)
    places = ((np.array(sent) - sent[0]) // window).astype(np.int64)
    counts = np.bincount(places)
    return float(counts.var() / counts.mean())


def _smoothed(replayer: Replayer) -> Prediction | None:
    return replayer.predict("the same requests at even distances", loads=_even)


def _even(loads: tuple[Load, ...]) -> tuple[Load, ...]:
    order = sorted(range(len(loads)), key=lambda i: loads[i].sent_ns)
    first, last = loads[order[0]].sent_ns, loads[order[-1]].sent_ns
    gap = (last - first) // max(len(loads) - 1, 1)
    moments = {index: first + place * gap for place, index in enumerate(order)}
    return tuple(replace(load, sent_ns=moments[index]) for index, load in enumerate(loads))


RULE: Final = Rule(CAUSE, find)
