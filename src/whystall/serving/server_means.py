"""The mean request by the server's own counters: what is known of a load whose single requests no file names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from whystall.serving.parts import Part
from whystall.serving.readers.reader import nanoseconds
from whystall.serving.records import SGLANG, ServedRun

__all__ = ["ServerMeans", "server_means"]


@dataclass(frozen=True, slots=True)
class ServerMeans:
    """Finished requests between two readings of ``/metrics``, and the parts of their mean time, which add up to it.

    ``prompt_tokens`` and ``output_tokens`` are means, too.
    """

    requests: int
    total_ns: int
    ttft_ns: int
    prompt_tokens: float
    output_tokens: float
    parts: Mapping[Part, int]


def server_means(run: ServedRun) -> ServerMeans | None:
    """The means; ``None`` without two readings or times in the log, or where no request finished between them."""
    count = run.counted("e2e_request_latency_seconds_count")
    whole, first = _mean(run, "e2e_request_latency_seconds"), _mean(run, "time_to_first_token_seconds")
    queue = _mean(run, "request_queue_time_seconds")
    if not count or whole is None or queue is None:
        return _by_log(run)
    parts = _parts(run, whole, queue, first)
    if parts is None:
        return _by_log(run)
    if min(parts.values()) < 0:  # requests were under way at a reading, and only some of their phases are counted
        parts = {part: max(time, 0) for part, time in parts.items()}
        whole = sum(parts.values())
    return ServerMeans(
        round(count),
        whole,
        first or 0,
        (run.counted("prompt_tokens") or 0.0) / count,
        (run.counted("generation_tokens") or 0.0) / count,
        {part: time for part, time in parts.items() if time},
    )


def _mean(run: ServedRun, name: str) -> int | None:
    """The mean of a histogram's values between the readings, in nanoseconds."""
    total, of = run.counted(f"{name}_sum"), run.counted(f"{name}_count")
    return None if total is None or not of else nanoseconds(total / of)


def _parts(run: ServedRun, whole: int, queue: int, first: int | None) -> dict[Part, int] | None:
    """The phases that are counted. SGLang counts no decode time: it is the time after the first token."""
    prefill, decode = _mean(run, "request_prefill_time_seconds"), _mean(run, "request_decode_time_seconds")
    if decode is None and run.settings.server == SGLANG and first is not None:
        decode = whole - first
    if decode is None:
        return None
    if prefill is None:
        return {Part.QUEUE: queue, Part.BEFORE_FIRST_TOKEN: whole - queue - decode, Part.GENERATION: decode}
    return {
        Part.FRONT_AND_STEP_WAIT: whole - queue - prefill - decode,
        Part.QUEUE: queue,
        Part.PREFILL: prefill,
        Part.GENERATION: decode,
    }


def _by_log(run: ServedRun) -> ServerMeans | None:
    """The mean of SGLang's log lines on single requests: their queue, and all their steps."""
    rows = run.batches.durations if run.batches is not None else ()
    if not rows:
        return None
    count = len(rows)
    queue, forward, prompt, output = (sum(row[place] for row in rows) / count for place in range(4))
    parts = {Part.QUEUE: round(queue), Part.GENERATION: round(forward)}
    whole = sum(parts.values())
    return ServerMeans(count, whole, 0, prompt, output, {part: time for part, time in parts.items() if time})
