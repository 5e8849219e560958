"""Records of aiperf 0.13 (``profile_export.jsonl``): one JSON object a request, with wall-clock nanoseconds.

The credit's time is when the request was due, so that lateness and the client's own wait are one part. Field names as
`aiperf/common/models/record_models.py` has them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from whystall.json_text import NotJsonError, parse_json
from whystall.serving.readers.reader import Source, nanoseconds
from whystall.serving.records import ClientRequest, ClientRun, Part

_MOST: Final = 500_000
_END_NS: Final = 4 * 10**18  # wall clocks until 2096
_NANOSECONDS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "sec": 1e9, "s": 1e9}


class _Value(msgspec.Struct):
    value: float | list[float] | None = None
    unit: str | None = None


class _Metadata(msgspec.Struct):
    request_start_ns: int
    request_end_ns: int
    credit_issued_ns: int | None = None
    x_request_id: str | None = None
    benchmark_phase: str | None = None
    was_cancelled: bool = False


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Value] = {}
    error: object = None


class Aiperf:
    """Reads aiperf's records."""

    kind = "aiperf records"

    def recognizes(self, head: bytes) -> bool:
        """Whether the first line has aiperf's fields."""
        first = head.lstrip().partition(b"\n")[0]
        return first.startswith(b"{") and b'"request_start_ns"' in first and b'"metadata"' in first

    def read(self, source: Source) -> Part:
        """The requests that were profiled and succeeded."""
        found: list[ClientRequest] = []
        failed = bad = 0
        for line in source.lines():
            if not line.strip():
                continue
            try:
                record = parse_json(line, _Record)
            except NotJsonError:
                bad += 1
                continue
            if record.metadata.benchmark_phase == "warmup":
                continue
            request = _request(record)
            failed += request is None
            if request is not None and len(found) < _MOST:
                found.append(request)
        if bad:
            source.notes.append(f"lines left out, since they are no record of a request: {bad:,}")
        return Part(self.kind, client=ClientRun(self.kind, tuple(found), failed))


def _request(record: _Record) -> ClientRequest | None:
    at, metrics = record.metadata, record.metrics
    first = _time_ns(metrics.get("time_to_first_token"))
    if record.error or at.was_cancelled or first is None or not 0 <= at.request_start_ns < at.request_end_ns < _END_NS:
        return None
    issued = at.credit_issued_ns
    waited = None if issued is None or issued <= 0 else max(at.request_start_ns - issued, 0)
    return ClientRequest(
        sent_ns=at.request_start_ns,
        gate_ns=waited,
        latency_ns=at.request_end_ns - at.request_start_ns,
        ttft_ns=first,
        input_tokens=_count(metrics.get("input_sequence_length")),
        output_tokens=_count(metrics.get("output_sequence_length")),
        key=at.x_request_id,
    )


def _time_ns(metric: _Value | None) -> int | None:
    if metric is None or not isinstance(metric.value, int | float) or metric.unit not in _NANOSECONDS:
        return None
    return nanoseconds(metric.value * _NANOSECONDS[metric.unit] / 1e9)


def _count(metric: _Value | None) -> int:
    value = metric.value if metric is not None else None
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0
