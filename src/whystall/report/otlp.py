"""Metrics as OTLP's JSON, for an OpenTelemetry collector over HTTP (opentelemetry-proto, OTLP/HTTP 1.x).

64-bit integers are strings, as in protobuf's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from whystall.report.names import clean
from whystall.vocabulary.metrics import METRICS, Histogram, Metric, Point

_SERVICE: Final = "whystall"
_CUMULATIVE: Final = 2


def otlp_json(run: str, points: Sequence[Point], *, version: str, at_unix_ns: int) -> bytes:
    """The body of a request: the points as they were at ``at_unix_ns``, of a resource that is the run."""
    resource = {"service.name": _SERVICE, "service.instance.id": run, "whystall.run": run}
    metrics = [
        _metric(metric, found, at_unix_ns)
        for metric in METRICS
        if (found := [point for point in points if point.metric is metric])
    ]
    scope = {"scope": {"name": _SERVICE, "version": version}, "metrics": metrics}
    body = {"resourceMetrics": [{"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}]}
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()


def _metric(metric: Metric, points: Sequence[Point], at_unix_ns: int) -> dict[str, Any]:
    data: dict[str, Any] = {"dataPoints": [_point(point, at_unix_ns) for point in points]}
    if metric.kind == "histogram":
        data["aggregationTemporality"] = _CUMULATIVE
    return {"name": metric.otel, "description": metric.meaning, "unit": metric.unit, metric.kind: data}


def _point(point: Point, at_unix_ns: int) -> dict[str, Any]:
    told = {"attributes": _attributes(point.labels), "timeUnixNano": str(at_unix_ns)}
    value = point.value
    if not isinstance(value, Histogram):
        return told | {"asDouble": value}
    return told | {
        "startTimeUnixNano": str(value.since_unix_ns),
        "count": str(sum(value.counts)),
        "sum": value.total,
        "bucketCounts": [str(count) for count in value.counts],
        "explicitBounds": list(value.bounds),
    }


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Each label; a rank or device is a whole number."""
    return [{"key": key, "value": _value(key, value)} for key, value in labels.items()]


def _value(key: str, value: str) -> dict[str, str]:
    return {"intValue": value} if key in {"rank", "device"} else {"stringValue": clean(value, 200)}
