"""Readings of SGLang's ``/metrics``: its series under the names of vLLM's that mean the same; no label's text is kept.

SGLang counts per rank: of the ranks of one engine, which count the same requests, the first one is read, and engines
(``dp_rank``) are added up. Names as `python/sglang/srt/observability/metrics_collector.py` has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from whystall.serving.readers.prometheus import LABEL, PLAIN, PROCESS_CPU, PROCESS_START, number
from whystall.serving.readers.reader import Source
from whystall.serving.records import SGLANG, Metrics, Part, Settings

_LINE: Final = re.compile(rb'^sglang:([a-z0-9_]{1,80})(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S{1,40})')
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
_SUFFIXES: Final = ("_bucket", "_created")

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
    series: dict[str, dict[int, dict[Rank, float]]] = {}
    process: dict[str, float] = {}
    for line in lines:
        for name, mark in (("start", PROCESS_START), ("cpu", PROCESS_CPU)):
            if line.startswith(mark) and (value := number(line.removeprefix(mark).split()[:1])) is not None:
                process[name] = value
        found = _LINE.match(line)
        value = None if found is None else number([found[3]])
        if found is None or value is None:
            continue
        labels = dict(LABEL.findall(found[2] or b""))
        kept = _name(found[1].decode().removesuffix("_total"), labels)
        if kept is None or (kept not in series and len(series) >= _MOST_NAMES):
            continue
        engine = _whole(labels.get(b"dp_rank"))
        engines = series.setdefault(kept, {})
        if engine not in engines and len(engines) >= _MOST_ENGINES:
            continue
        ranks = engines.setdefault(engine, {})
        rank = tuple(_whole(labels.get(key)) for key in _RANKS)
        ranks[rank] = ranks.get(rank, 0.0) + value
    values = {name: sum(ranks[min(ranks)] for ranks in engines.values()) for name, engines in series.items()}
    if "prompt_tokens" in values:
        values["prefix_cache_queries"] = values["prompt_tokens"]
    if "cpu" in process:
        values["process_cpu_seconds"] = process["cpu"]
    by_engine = series.get("num_requests_running", {})
    served = {str(engine): ranks[min(ranks)] for engine, ranks in by_engine.items()}
    return Metrics(values, {}, served, process.get("start"))


def _name(name: str, labels: dict[bytes, bytes]) -> str | None:
    """The name under which a series is kept; ``None`` where it is not."""
    if name.endswith(_SUFFIXES):
        return None
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
