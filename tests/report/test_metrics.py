"""The text that Prometheus reads."""

from __future__ import annotations

import re

from whystall.report.metrics import RankMetrics, metrics_text

# The exposition format: a name, labels with escaped values, a number.
LINE = re.compile(r'^[a-z_]+(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)*\})? [0-9.e+-]+$')


def test_a_histogram_of_steps_the_shares_and_the_findings() -> None:
    rank = RankMetrics(1, (0.1, 1.0), [3, 2, 1], 7.5, {"input": 0.25, "other": 0.75}, 1.5)
    text = metrics_text("run", [rank], [("host.python", "critical", 1.25)])
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
    rank = RankMetrics(0, (1.0,), [0, 0], 0.0, {}, None)
    text = metrics_text('a"} 1\nevil 2 \\', [rank], [('x"\n', "minor", 2.0)])
    for line in text.splitlines():
        assert line.startswith("# ") or LINE.match(line), line
    assert not any(line.startswith("evil") for line in text.splitlines())
