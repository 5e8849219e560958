"""The mean request by the server's own counters: what is known of a load whose single requests no file names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from whystall.serving.parts import Part
from whystall.serving.records import ServedRun

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
    """The means; ``None`` without two readings, or where no request finished between them."""
    count = run.counted("e2e_request_latency_seconds_count")
    if not count:
        return None

    def mean(name: str) -> int | None:
        total, of = run.counted(f"{name}_sum"), run.counted(f"{name}_count")
        return None if total is None or not of else round(total / of * 1e9)

    whole, queue = mean("e2e_request_latency_seconds"), mean("request_queue_time_seconds")
    prefill, decode = mean("request_prefill_time_seconds"), mean("request_decode_time_seconds")
    if whole is None or queue is None or prefill is None or decode is None:
        return None
    parts = {
        Part.FRONT_AND_STEP_WAIT: whole - queue - prefill - decode,
        Part.QUEUE: queue,
        Part.PREFILL: prefill,
        Part.GENERATION: decode,
    }
    if min(parts.values()) < 0:  # requests were under way at a reading, and only some of their phases are counted
        parts[Part.FRONT_AND_STEP_WAIT] = 0
        whole = sum(parts.values())
    return ServerMeans(
        round(count),
        whole,
        mean("time_to_first_token_seconds") or 0,
        (run.counted("prompt_tokens") or 0.0) / count,
        (run.counted("generation_tokens") or 0.0) / count,
        {part: time for part, time in parts.items() if time},
    )
