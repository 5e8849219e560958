"""Readings of vLLM's ``/metrics`` in Prometheus' text format: counters, sums and settings; no label's text is kept."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from whystall.serving.readers.reader import Source
from whystall.serving.records import Metrics, Part, Settings

_LINE: Final = re.compile(rb'^vllm:([a-z0-9_]{1,80})(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S{1,40})')
_LABEL: Final = re.compile(rb'(\w{1,60})="((?:[^"\\]|\\.){0,80})"')
_CONFIG: Final = (b"block_size", b"num_gpu_blocks", b"enable_prefix_caching")
_OLDER: Final = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_queries": "prefix_cache_queries",
    "gpu_prefix_cache_hits": "prefix_cache_hits",
    "time_per_output_token_seconds_sum": "inter_token_latency_seconds_sum",
    "time_per_output_token_seconds_count": "inter_token_latency_seconds_count",
}
"""Names of servers before 0.32, and those of 0.32."""
_SPLIT: Final = {"num_requests_waiting_by_reason": b"reason", "prompt_tokens_by_source": b"source"}
_PLAIN: Final = re.compile(r"[a-z_]{1,40}\Z")
_MOST_NAMES: Final = 2_000
_BUCKETS: Final = "_bucket"
_PROCESS_START: Final = b"process_start_time_seconds "
_PROCESS_CPU: Final = b"process_cpu_seconds_total "


class Prometheus:
    """Reads a text of ``/metrics``."""

    kind = "vLLM /metrics"

    def recognizes(self, head: bytes) -> bool:
        """Whether series of vLLM's, or their descriptions, are in the head."""
        return b"vllm:" in head and (b"\n# TYPE " in head or head.startswith((b"# HELP ", b"# TYPE ")))

    def read(self, source: Source) -> Part:
        """Sums over all engines of each series."""
        metrics = metrics_of(source.lines())
        settings = _settings(metrics.config)
        return Part(self.kind, metrics=metrics, settings=settings, engines=max(len(metrics.engines), 1))


def metrics_of(lines: Iterable[bytes]) -> Metrics:
    """The reading that a text's lines give."""
    values: dict[str, float] = {}
    config: dict[str, str] = {}
    engines: dict[str, float] = {}
    started: float | None = None
    for line in lines:
        if line.startswith(_PROCESS_START):
            started = _number(line.removeprefix(_PROCESS_START).split()[:1])
        elif line.startswith(_PROCESS_CPU) and (used := _number(line.removeprefix(_PROCESS_CPU).split()[:1])):
            values["process_cpu_seconds"] = used
        found = _LINE.match(line)
        name = None if found is None else found[1].decode().removesuffix("_total")
        if found is None or name is None or name.endswith((_BUCKETS, "_created")) or len(values) > _MOST_NAMES:
            continue
        labels = dict(_LABEL.findall(found[2] or b""))
        if name == "cache_config_info":
            config |= {key.decode(): labels[key].decode("ascii", "replace") for key in _CONFIG if key in labels}
            continue
        value = _number([found[3]])
        if value is None:
            continue
        name = _OLDER.get(name, name)
        if name in _SPLIT and _PLAIN.match(part := labels.get(_SPLIT[name], b"").decode("ascii", "replace")):
            name = f"{name}.{part}"
        values[name] = values.get(name, 0.0) + value
        if name == "request_success" and len(engine := labels.get(b"engine", b"0")) <= 6 and engine.isdigit():
            engines[engine.decode()] = engines.get(engine.decode(), 0.0) + value
    return Metrics(values, config, engines, started)


def _number(words: list[bytes]) -> float | None:
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _settings(config: Mapping[str, str]) -> Settings:
    def whole(name: str) -> int | None:
        text = config.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    caching = config.get("enable_prefix_caching")
    return Settings(
        block_tokens=whole("block_size"),
        kv_blocks=whole("num_gpu_blocks"),
        prefix_caching=None if caching is None else caching == "True",
    )
