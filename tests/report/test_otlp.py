"""The body of a request to a collector, read back by OpenTelemetry's own schema."""

from __future__ import annotations

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from whystall.report.otlp import otlp_json
from whystall.vocabulary.metrics import GAIN, STEP_DURATION, Histogram, Point


def read(body: bytes) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    Parse(body, request)
    return request


def test_a_histogram_and_a_finding() -> None:
    steps = Histogram((0.1, 1.0), [3, 2, 1], 7.5, since_unix_ns=1_800_000_000_000_000_001)
    points = [
        Point(STEP_DURATION, {"rank": "3"}, steps),
        Point(GAIN, {"cause": "host.python", "severity": "major"}, 1.25),
    ]
    ((resource,),) = (read(otlp_json("run", points, version="1.2.3", at_unix_ns=1 << 60)).resource_metrics,)
    (scope,) = resource.scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("whystall", "1.2.3")
    histogram, gauge = scope.metrics
    (counted,) = histogram.histogram.data_points
    assert (counted.count, counted.sum) == (6, 7.5)
    assert (list(counted.bucket_counts), list(counted.explicit_bounds)) == ([3, 2, 1], [0.1, 1.0])
    assert counted.start_time_unix_nano == 1_800_000_000_000_000_001  # beyond what a double holds
    assert counted.time_unix_nano == 1 << 60
    assert counted.attributes[0].value.int_value == 3
    (gain,) = gauge.gauge.data_points
    assert gain.as_double == 1.25
    assert {one.key: one.value.string_value for one in gain.attributes} == {"cause": "host.python", "severity": "major"}


def test_hostile_names_are_spelled_out() -> None:
    point = Point(GAIN, {"cause": 'x"\n\x1b[31m', "severity": "minor"}, 2.0)
    request = read(otlp_json('a"}\udcff', [point], version="1", at_unix_ns=1))
    (resource,) = request.resource_metrics
    assert resource.resource.attributes[1].value.string_value == 'a"}\\udcff'
    (gain,) = resource.scope_metrics[0].metrics[0].gauge.data_points
    assert gain.attributes[0].value.string_value == 'x"\\n\\x1b[31m'
