"""Readings of vLLM's ``/metrics`` in Prometheus' text format: counters, sums and settings; no label's text is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from whystall.serving.readers.reader import Source
from whystall.serving.records import Metrics, Part, Settings

_LINE: Final = re.compile(
    rb'^(?:(vllm|sglang):|(?=process_))([a-z0-9_]{1,80})(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S{1,40})'
)
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
PLAIN: Final = re.compile(r"[a-z_]{1,40}\Z")
_MOST_NAMES: Final = 2_000
_LARGEST: Final = 1e18  # also leaves out infinity and NaN
_LEFT_OUT: Final = ("_bucket", "_created")
STARTED: Final = "process_start_time_seconds"
_OF_PROCESS: Final = (STARTED, "process_cpu_seconds")


class Series(NamedTuple):
    """A series of a server with its labels and its value; a counter's name has no ``_total``."""

    name: str
    labels: dict[bytes, bytes]
    value: float


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
    for found, labels, value in series(lines, b"vllm"):
        if found == "cache_config_info":
            config |= {key.decode(): labels[key].decode("ascii", "replace") for key in _CONFIG if key in labels}
            continue
        name = _OLDER.get(found, found)
        if name in _SPLIT and PLAIN.match(part := labels.get(_SPLIT[name], b"").decode("ascii", "replace")):
            name = f"{name}.{part}"
        if name not in values and len(values) >= _MOST_NAMES:
            continue
        values[name] = values.get(name, 0.0) + value
        if name == "request_success" and len(engine := labels.get(b"engine", b"0")) <= 6 and engine.isdigit():
            engines[engine.decode()] = engines.get(engine.decode(), 0.0) + value
    return Metrics(values, config, engines, values.pop(STARTED, None))


def series(lines: Iterable[bytes], server: bytes) -> Iterator[Series]:
    """The series of ``server`` and those of its process. Buckets, and numbers that no counter reaches, are left out."""
    for line in lines:
        found = _LINE.match(line)
        if found is None or found[1] not in {server, None}:
            continue
        name, value = found[2].decode().removesuffix("_total"), _number(found[4])
        if value is None or name.endswith(_LEFT_OUT) or (found[1] is None and name not in _OF_PROCESS):
            continue
        yield Series(name, dict(_LABEL.findall(found[3] or b"")), value)


def _number(word: bytes) -> float | None:
    try:
        value = float(word)
    except ValueError:
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
