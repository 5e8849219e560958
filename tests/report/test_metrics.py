"""The text that Prometheus reads."""

from __future__ import annotations

import re

import msgspec
import pytest

from whystall.report.metrics import RankMetrics, metrics_text, points_of_ranks, points_of_report
from whystall.report.schema import Report
from whystall.vocabulary.metrics import GAIN, LEDGER_SHARE, METRICS, Histogram, Point

# The exposition format: a name, labels with escaped values, a number.
LINE = re.compile(r'^[a-z_]+(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)*\})? [0-9.e+-]+$')


def test_a_histogram_of_steps_the_shares_and_the_findings() -> None:
    rank = RankMetrics(1, Histogram((0.1, 1.0), [3, 2, 1], 7.5), {"input": 0.25, "other": 0.75}, 1.5)
    finding = Point(GAIN, {"cause": "host.python", "severity": "critical"}, 1.25)
    text = metrics_text("run", [*points_of_ranks([rank]), finding])
    lines = text.splitlines()
    assert 'whystall_step_duration_seconds_bucket{run="run",rank="1",le="0.1"} 3' in lines
    assert 'whystall_step_duration_seconds_bucket{run="run",rank="1",le="1.0"} 5' in lines
    assert 'whystall_step_duration_seconds_bucket{run="run",rank="1",le="+Inf"} 6' in lines
    assert 'whystall_step_duration_seconds_count{run="run",rank="1"} 6' in lines
    assert 'whystall_step_part_share{run="run",rank="1",part="input"} 0.2500' in lines
    assert 'whystall_step_pace_ratio{run="run",rank="1"} 1.5000' in lines
    assert 'whystall_finding_gain_ratio{run="run",cause="host.python",severity="critical"} 1.2500' in lines
    assert text.endswith("\n")


def test_hostile_names_stay_within_their_quotes() -> None:
    rank = RankMetrics(0, Histogram((1.0,), [0, 0], 0.0), {}, None)
    finding = Point(GAIN, {"cause": 'x"\n', "severity": "minor"}, 2.0)
    text = metrics_text('a"} 1\nevil 2 \\', [*points_of_ranks([rank]), finding])
    for line in text.splitlines():
        assert line.startswith("# ") or LINE.match(line), line
    assert not any(line.startswith("evil") for line in text.splitlines())


def test_of_a_report_the_ledger_of_each_device_and_each_cause_once(samples: dict[str, Report]) -> None:
    report = samples["diagnosed"]
    points = list(points_of_report(msgspec.structs.replace(report, findings=[*report.findings, *report.findings])))
    for device in report.devices:
        of = {"rank": str(device.rank), "device": str(device.device)}
        shares = [one.value for one in points if one.metric is LEDGER_SHARE and of.items() <= one.labels.items()]
        assert sum(share for share in shares if isinstance(share, float)) == pytest.approx(1.0)
    told = {finding.id for finding in report.findings if finding.gain is not None and finding.severity != "info"}
    causes = [one.labels["cause"] for one in points if one.metric is GAIN]
    assert told
    assert sorted(causes) == sorted(told)


def test_names_follow_the_rules_that_lead_from_one_tool_to_the_other() -> None:
    # OpenTelemetry's "Prometheus and OpenMetrics compatibility": dots become underscores, the unit is a suffix.
    for metric in METRICS:
        plain = metric.otel.replace(".", "_")
        assert metric.name in {plain, plain + {"s": "_seconds", "1": "_ratio"}[metric.unit]}
