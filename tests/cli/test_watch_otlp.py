"""``whystall watch --metrics otlp://…``: what a collector gets is what Prometheus reads of the same run."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from tests.cli.conftest import Cli
from tests.cli.test_watch import EVEN, SLOWER, run_of
from tests.live.collectors import collector

UNITS = {"whystall.step.duration": "s"}


def labels(attributes: RepeatedCompositeFieldContainer) -> dict[str, str]:
    return {one.key: str(getattr(one.value, one.value.WhichOneof("value"))) for one in attributes}


def prometheus(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], str]:
    """The lines of the text file: name and labels without the run, to the value."""
    rows = re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    pairs = ((name, dict(re.findall(r'(\w+)="([^"]*)"', inside)), value) for name, inside, value in rows)
    return {(name, frozenset((k, v) for k, v in of.items() if k != "run")): value for name, of, value in pairs}


def test_a_collector_gets_what_prometheus_reads(cli: Cli, tmp_path: Path) -> None:
    folder, metrics = run_of(tmp_path, *EVEN, *SLOWER, trace=True), tmp_path / "job.prom"
    assert cli("watch", str(folder), "--once", "--metrics", str(metrics)).code == 0
    with collector() as received:
        done = cli("watch", str(folder), "--once", "--metrics", received.address)
    assert (done.code, done.err) == (0, "")

    resource = labels(received.resource().resource.attributes)
    assert resource == {"service.name": "whystall", "service.instance.id": tmp_path.name, "whystall.run": tmp_path.name}
    text, seen = prometheus(metrics.read_text()), 0
    for name, metric in received.metrics().items():
        assert metric.unit == UNITS.get(name, "1")
        assert metric.description
        written = name.replace(".", "_")
        if metric.HasField("histogram"):
            (point,) = metric.histogram.data_points
            of = frozenset(labels(point.attributes).items())
            assert metric.histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            assert str(point.count) == text[f"{written}_seconds_count", of] == "230"
            assert f"{point.sum:.6f}" == text[f"{written}_seconds_sum", of]
            below = 0
            for bound, count in zip([*map(str, point.explicit_bounds), "+Inf"], point.bucket_counts, strict=True):
                below += count
                assert str(below) == text[f"{written}_seconds_bucket", of | {("le", bound)}]
                seen += 1
            seen += 2
            continue
        for gauge in metric.gauge.data_points:
            of = frozenset(labels(gauge.attributes).items())
            (value,) = (text[key, of] for key in (written, f"{written}_ratio") if (key, of) in text)
            assert f"{gauge.as_double:.4f}" == value
            assert gauge.time_unix_nano > 0
            seen += 1
    assert seen == len(text)
    assert {"whystall.ledger.share", "whystall.step.part.share", "whystall.step.pace"} <= set(received.metrics())


def test_a_watch_without_its_collector_goes_on(cli: Cli, tmp_path: Path) -> None:
    with collector() as received:
        address = received.address
    done = cli("watch", str(run_of(tmp_path, *EVEN, exit_code=0)), "--metrics", address)
    assert done.code == 0
    assert "the job has ended" in done.out
    assert done.err.count("cannot be reached") == 1


def test_other_addresses_are_refused(cli: Cli, tmp_path: Path) -> None:
    address = "https://me:a-secret@127.0.0.1"
    done = cli("watch", str(run_of(tmp_path, *EVEN)), "--once", "--metrics", address)
    assert done.code == 2
    assert "otlp://HOST:PORT" in done.err
    assert "a-secret" not in done.err
