"""All readers, in the order in which they are asked."""

from __future__ import annotations

from whystall.serving.readers.aiperf import Aiperf
from whystall.serving.readers.bench import Bench
from whystall.serving.readers.guidellm import Guidellm
from whystall.serving.readers.metrics_series import MetricsSeries
from whystall.serving.readers.otlp import Otlp
from whystall.serving.readers.prometheus import Prometheus
from whystall.serving.readers.reader import ServingReader
from whystall.serving.readers.sglang_log import SglangLog
from whystall.serving.readers.sglang_metrics import SglangMetrics
from whystall.serving.readers.sglang_requests import SglangRequests
from whystall.serving.readers.timed_trace import TimedTrace
from whystall.serving.readers.vllm_log import VllmLog
from whystall.serving.readers.worker_trace import WorkerTrace

READERS: tuple[ServingReader, ...] = (
    Prometheus(),
    SglangMetrics(),
    SglangRequests(),
    MetricsSeries(),
    Guidellm(),
    Aiperf(),
    Bench(),
    TimedTrace(),
    WorkerTrace(),
    Otlp(),
    VllmLog(),
    SglangLog(),
)


def reader_of(head: bytes) -> ServingReader | None:
    """The reader of a file with this head; ``None`` for a file of another kind."""
    return next((reader for reader in READERS if reader.recognizes(head)), None)
