"""Readings of vLLM's ``/metrics`` in Prometheus' text format: counters, sums and settings; no label's text is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from whystall.serving.readers.reader import Source
from whystall.serving.records import Metrics, Part, Settings

_LINE: Final = re.compile(rb'^vllm:([a-z0-9_]{1,80})(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S{1,40})')
LABEL: Final = re.compile(rb'(\w{1,60})="((?:[^"\\]|\\.){0,80})"')
"""A label with its value."""
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
PLAIN: Final = re.compile(r"[a-z_]{1,40}\Z")
_MOST_NAMES: Final = 2_000
_LARGEST: Final = 1e18  # also leaves out infinity and NaN
_BUCKETS: Final = "_bucket"
PROCESS_START: Final = b"process_start_time_seconds "
PROCESS_CPU: Final = b"process_cpu_seconds_total "


class Prometheus:
    """Reads a text of ``/metrics``."""

    kind = "vLLM /metrics"

    def recognizes(self, head: bytes) -> bool:
        """Whether series of vLLM's, or their descriptions, are in the head."""
        return (
            b"vllm:" in head
            and b"sglang:" not in head
            and (b"\n# TYPE " in head or head.startswith((b"# HELP ", b"# TYPE ")))
        )

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
        if line.startswith(PROCESS_START):
            started = number(line.removeprefix(PROCESS_START).split()[:1])
        elif line.startswith(PROCESS_CPU) and (used := number(line.removeprefix(PROCESS_CPU).split()[:1])):
            values["process_cpu_seconds"] = used
        found = _LINE.match(line)
        name = None if found is None else found[1].decode().removesuffix("_total")
        if found is None or name is None or name.endswith((_BUCKETS, "_created")) or len(values) > _MOST_NAMES:
            continue
        labels = dict(LABEL.findall(found[2] or b""))
        if name == "cache_config_info":
            config |= {key.decode(): labels[key].decode("ascii", "replace") for key in _CONFIG if key in labels}
            continue
        value = number([found[3]])
        if value is None:
            continue
        name = _OLDER.get(name, name)
        if name in _SPLIT and PLAIN.match(part := labels.get(_SPLIT[name], b"").decode("ascii", "replace")):
            name = f"{name}.{part}"
        values[name] = values.get(name, 0.0) + value
        if name == "request_success" and len(engine := labels.get(b"engine", b"0")) <= 6 and engine.isdigit():
            engines[engine.decode()] = engines.get(engine.decode(), 0.0) + value
    return Metrics(values, config, engines, started)


def number(words: list[bytes]) -> float | None:
    """The number that the first word is; ``None`` for one that no counter reaches."""
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if abs(value) < _LARGEST else None


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
