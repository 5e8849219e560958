"""The limit of running requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer
from whystall.serving.records import QueueReadings

CAUSE: Final = cause_beside(__name__)
_FEWEST_READINGS: Final = 3
"""Readings with a queue. Chosen: one or two of them may fall into the moment between an arrival and the next step."""


def find(case: Case) -> Finding | None:
    """A queue for places, with room in the cache."""
    if case.run.iterations is None and case.run.readings is not None:
        return _by_readings(case, case.run.readings)
    steps, limit = case.run.iterations, case.settings.max_num_seqs
    queued = case.mean(Part.QUEUE)
    if steps is None or limit is None or case.share(queued) < CAUSE.threshold("least_share"):
        return None
    reasons = case.queue
    known = steps.kv_permille[steps.kv_permille >= 0]
    used = float(known.mean()) / 1000 if len(known) else 0.0
    by_seats = reasons.share(reasons.seats_ns)
    if by_seats < CAUSE.threshold("least_of_queue") or used > CAUSE.threshold("most_cache"):
        return None
    wanted = wanted_seats(case)
    return case.finding(
        CAUSE,
        f"The configuration is at fault: requests wait {duration(queued)} in the queue because --max-num-seqs is "
        f"{limit:,}, while {used:.1%} of the cache is in use.",
        queued,
        Evidence("queue, mean", queued, "ns"),
        Evidence("of the queue time with all places taken", by_seats, "share"),
        Evidence("cache in use, mean", used, "share"),
        remedy=f"Raise --max-num-seqs (it is {limit:,}), here to {wanted:,}.",
        prediction=case.predict(lambda replayer: _more(replayer, wanted)),
    )


def _by_readings(case: Case, readings: QueueReadings) -> Finding | None:
    """The same by a log's lines on batches or by readings of the gauges: those with a queue have all places taken.

    A limit that no file states is the number of requests that run in most of these readings, and perhaps so.
    """
    queued, stated = case.mean(Part.QUEUE), case.settings.max_num_seqs
    waits = readings.waiting > 0
    if int(waits.sum()) < _FEWEST_READINGS or case.share(queued) < CAUSE.threshold("least_share"):
        return None
    limit = stated or int(np.median(readings.running[waits]))
    by_seats = float((readings.running[waits] >= limit).mean())
    if stated is None:
        by_seats = float((readings.running[waits] == limit).mean())
    known = readings.kv_permille[waits & (readings.kv_permille >= 0)]
    used = float(known.mean()) / 1000 if len(known) else 0.0
    if limit < 1 or by_seats < CAUSE.threshold("least_of_queue") or used > CAUSE.threshold("most_cache"):
        return None
    wanted = _power_of_two(int((readings.running + readings.waiting).max()))
    most = f"--max-num-seqs is {limit:,}" if stated else f"no more than {limit:,} run at once (--max-num-seqs)"
    return case.finding(
        CAUSE,
        f"The configuration is {'' if stated else 'probably '}at fault: requests wait {duration(queued)} in the queue "
        f"because {most}, while {used:.1%} of the cache is in use.",
        queued,
        Evidence("queue, mean", queued, "ns"),
        Evidence("of the readings with a queue, all places taken", by_seats, "share"),
        Evidence("cache in use in these, mean", used, "share"),
        remedy=f"Raise --max-num-seqs (it is {limit:,}), here to {wanted:,}.",
        certain=stated is not None,
    )


def wanted_seats(case: Case) -> int:
    """The largest number of requests under way at once when none had to queue, as a power of two."""
    if not case.ledgers:
        return _power_of_two(max((running + waiting for running, waiting in case.run.waiting), default=0))
    moments = []
    for ledger, request in zip(case.ledgers, case.run.client.requests if case.run.client else (), strict=True):
        if request.sent_ns is not None:
            served = ledger.server_ns - ledger.of(Part.QUEUE)
            moments += [(request.sent_ns, 1), (request.sent_ns + served, -1)]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return _power_of_two(most)


def _power_of_two(most: int) -> int:
    return max(1 << max(2 * most - 1, 1).bit_length(), 8)


def _more(replayer: Replayer, seats: int) -> Prediction | None:
    return replayer.predict(f"--max-num-seqs {seats}", server=replace(replayer.server, max_num_seqs=seats))


RULE: Final = Rule(CAUSE, find)
