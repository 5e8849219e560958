"""A cache that is too small for the requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """A queue for blocks, and what preemptions cost."""
    steps = case.run.iterations
    if steps is None:
        return _by_metrics(case)
    queued, again = case.mean(Part.QUEUE), case.mean(Part.PREEMPTED, Part.RECOMPUTE)
    recomputed = int(np.maximum(steps.generation_tokens - steps.generation_requests, 0).sum())
    preemptions = sum(one.preemptions for one in case.ledgers)
    added = "add"
    if not any(case.analysis.placed):
        added = "add at least"  # who was preempted also waits again, which only single requests show
        preemptions = round(case.run.counted("num_preemptions") or 0)
        again = _recomputation(case, recomputed)
    reasons = case.queue
    is_full = float(steps.kv_permille.max()) / 1000 >= CAUSE.threshold("full")
    by_blocks = reasons.share(reasons.blocks_ns)
    waits = queued if by_blocks >= CAUSE.threshold("least_of_queue") else 0
    if not is_full or case.share(waits + again) < CAUSE.threshold("least_share"):
        return None
    blocks = enough_blocks(case)
    return case.finding(
        CAUSE,
        f"The configuration is at fault: the key-value cache is full, so that requests wait {duration(waits)} in the "
        f"queue; {preemptions:,} preemptions {added} {duration(again)} a request.",
        waits + again,
        Evidence("queue without free blocks, mean", waits, "ns"),
        Evidence("preempted and recomputed, mean", again, "ns"),
        Evidence("preemptions", preemptions, "count"),
        Evidence("tokens computed again", recomputed, "tokens"),
        remedy=_remedy(case, blocks),
        prediction=case.predict(lambda replayer: _more(replayer, blocks)),
    )


def _by_metrics(case: Case) -> Finding | None:
    """Without steps: preemptions are counted, and the mean of the queue is known."""
    lines = case.run.batches
    preemptions = case.run.counted("num_preemptions") or (lines.retracted if lines is not None else 0)
    queued = case.run.counted("request_queue_time_seconds_sum")
    requests = case.run.counted("request_queue_time_seconds_count")
    mean: float = case.mean(Part.QUEUE)
    if queued is not None and requests:
        mean = queued / requests * 1e9
    if not preemptions or not mean:
        return None
    if case.share(mean) < CAUSE.threshold("least_share"):
        return None
    return case.finding(
        CAUSE,
        f"The configuration is at fault: the key-value cache is full. {preemptions:,.0f} requests were preempted, and "
        f"requests wait {duration(int(mean))} in the queue.",
        mean,
        Evidence("queue, mean", mean, "ns"),
        Evidence("preemptions", preemptions, "count"),
    )


def enough_blocks(case: Case) -> int:
    """Blocks for all requests at once."""
    block = case.settings.block_tokens or 16
    means = case.analysis.means
    if not case.ledgers and means is not None:
        most = max((running + waiting for running, waiting in case.run.waiting), default=0)
        return 1 + most * -(-round(means.prompt_tokens + means.output_tokens) // block)
    return 1 + sum(-(-(one.input_tokens + one.output_tokens) // block) for one in case.ledgers)


def _recomputation(case: Case, tokens: int) -> int:
    """The mean time that computing tokens again took a request, by the cost of prompt tokens."""
    model, means = case.analysis.model, case.analysis.means
    requests = len(case.ledgers) or (means.requests if means is not None else 0)
    return 0 if model is None or not requests else round(model.token_ns * tokens / requests)


def _remedy(case: Case, blocks: int) -> str:
    have = "" if case.settings.kv_blocks is None else f" It has {case.settings.kv_blocks:,} blocks;"
    return (
        "Give the cache more memory (--gpu-memory-utilization, and no --num-gpu-blocks-override) or smaller entries "
        f"(--kv-cache-dtype fp8).{have} {blocks:,} would hold all requests of this run at once."
    )


def _more(replayer: Replayer, blocks: int) -> Prediction | None:
    return replayer.predict(f"{blocks:,} blocks of cache", server=replace(replayer.server, kv_blocks=blocks))


RULE: Final = Rule(CAUSE, find)
