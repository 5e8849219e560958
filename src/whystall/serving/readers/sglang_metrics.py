"""Readings of SGLang's ``/metrics``: its series under the names of vLLM's that mean the same; no label's text is kept.

SGLang counts per rank: of the ranks of one engine, which count the same requests, the first one is read, and engines
(``dp_rank``) are added up. Names as `python/sglang/srt/observability/metrics_collector.py` has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from whystall.serving.readers.prometheus import PLAIN, STARTED, series
from whystall.serving.readers.reader import Source
from whystall.serving.records import SGLANG, Metrics, Part, Settings

_SAME: Final = {
    "queue_time_seconds_sum": "request_queue_time_seconds_sum",
    "queue_time_seconds_count": "request_queue_time_seconds_count",
    "time_per_output_token_seconds_sum": "inter_token_latency_seconds_sum",
    "time_per_output_token_seconds_count": "inter_token_latency_seconds_count",
    "num_requests": "request_success",
    "num_running_reqs": "num_requests_running",
    "num_queue_reqs": "num_requests_waiting",
    "token_usage": "kv_cache_usage_perc",
    "num_retracted_requests": "num_preemptions",
    "cached_tokens": "prefix_cache_hits",
    "prompt_tokens": "prompt_tokens",
}
_PREFILL: Final = b"prefill_forward"
_SPLIT: Final = ("scheduler_stage_seconds", "forward_execution_seconds")
"""Counters that are kept by their category."""
_RANKS: Final = (b"tp_rank", b"pp_rank", b"moe_ep_rank")
_MOST_NAMES: Final = 2_000
_MOST_ENGINES: Final = 1_000

Rank = tuple[int, ...]


class SglangMetrics:
    """Reads a text of SGLang's ``/metrics``."""

    kind = "SGLang /metrics"

    def recognizes(self, head: bytes) -> bool:
        """Whether series of SGLang's, or their descriptions, are in the head."""
        return b"sglang:" in head and (b"\n# TYPE " in head or head.startswith((b"# HELP ", b"# TYPE ", b"sglang:")))

    def read(self, source: Source) -> Part:
        """Sums over all engines of each series."""
        metrics = sglang_metrics_of(source.lines())
        pages = {name: metrics.values.get(name) for name in ("page_size", "num_pages")}
        size, count = (None if not value or not 0 < value < 1e9 else int(value) for value in pages.values())
        settings = Settings(server=SGLANG, block_tokens=size, kv_blocks=count)
        return Part(self.kind, metrics=metrics, settings=settings, engines=max(len(metrics.engines), 1))


def sglang_metrics_of(lines: Iterable[bytes]) -> Metrics:
    """The reading that a text's lines give."""
    by_name: dict[str, dict[int, dict[Rank, float]]] = {}
    for name, labels, value in series(lines, b"sglang"):
        kept = _name(name, labels)
        if kept is None or (kept not in by_name and len(by_name) >= _MOST_NAMES):
            continue
        engine = _whole(labels.get(b"dp_rank"))
        engines = by_name.setdefault(kept, {})
        if engine not in engines and len(engines) >= _MOST_ENGINES:
            continue
        ranks = engines.setdefault(engine, {})
        rank = tuple(_whole(labels.get(key)) for key in _RANKS)
        ranks[rank] = ranks.get(rank, 0.0) + value
    values = {name: sum(ranks[min(ranks)] for ranks in engines.values()) for name, engines in by_name.items()}
    if "prompt_tokens" in values:
        values["prefix_cache_queries"] = values["prompt_tokens"]
    by_engine = by_name.get("num_requests_running", {})
    served = {str(engine): ranks[min(ranks)] for engine, ranks in by_engine.items()}
    return Metrics(values, {}, served, values.pop(STARTED, None))


def _name(name: str, labels: dict[bytes, bytes]) -> str | None:
    """The name under which a series is kept; ``None`` where it is not."""
    if name.startswith("per_stage_req_latency_seconds_"):
        if labels.get(b"stage") != _PREFILL:
            return None
        return f"request_prefill_time_seconds_{name.rpartition('_')[2]}"
    if name in _SPLIT:
        category = labels.get(b"category", b"").decode("ascii", "replace")
        return f"{name}.{category}" if PLAIN.match(category) else None
    return _SAME.get(name, name)


def _whole(text: bytes | None) -> int:
    """A rank; one that is no small number counts as the first."""
    return int(text) if text is not None and text.isdigit() and len(text) <= 5 else 0
