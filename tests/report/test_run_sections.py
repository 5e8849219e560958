"""What is shown of a whole run: its step times, and the lines where its thread was found."""

from __future__ import annotations

import msgspec
from tests.diagnosis.cases import line, run

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.finding import Finding, Scope
from whystall.report.html import render_html
from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.terminal import render_terminal

SLOW = run(durations_ns=[10] * 30 + [80] + [20] * 29, places=[line(0.6, "x = f()"), line(0.2, "y = g()")])
CELL = msgspec.structs.replace(line(0.5, "z = h()"), file="cell 5")


def finding(severity: str) -> Finding:
    return Finding(
        id="host.gc", title="Collections", severity=severity, scope=Scope(ranks=[0], steps=[]),  # type: ignore[arg-type]
        attributed_ns_per_step=0, gain=None, confidence=1.0, evidence=[], code=[], rejected=[], missing_signals=[],
        remedy=None, verify=None,
    )  # fmt: skip


def watched(samples: dict[str, Report], found: RunSummary = SLOW, *severities: str) -> Report:
    findings = [finding(severity) for severity in severities]
    return msgspec.structs.replace(samples["cpu"], run=[found], findings=findings)


def test_step_times_stand_in_the_terminal_as_bars_and_on_the_page_as_a_chart(samples: dict[str, Report]) -> None:
    report = watched(samples)
    assert "▁" * 30 + "█" + "▂" * 29 in render_terminal(report, Options(verbose=True))
    assert "0.0,87.50 16.9,87.50" in render_html(report)  # an eighth of the longest
    assert "Step times, from the first to the last" in render_html(report)


def test_lines_are_shown_where_no_cause_is_named(samples: dict[str, Report]) -> None:
    told = render_terminal(watched(samples))
    assert "train.py:7" in told
    assert told.index("x = f()") < told.index("y = g()")
    assert "60.0 %" in told
    assert "x = f()" in render_terminal(watched(samples, SLOW, "info"))
    named = watched(samples, SLOW, "critical")
    assert "x = f()" not in render_terminal(named)
    assert "x = f()" in render_html(named)


def test_a_cell_of_a_notebook_has_its_line_in_words(samples: dict[str, Report]) -> None:
    assert "cell 5, line 7" in render_terminal(watched(samples, run(places=[CELL])))


def test_saving_and_collecting_stand_in_the_terminals_table(samples: dict[str, Report]) -> None:
    told = render_terminal(watched(samples, run(shares={"save": 0.31, "gc": 0.17})), Options(verbose=True, width=200))
    assert "Saving" in told
    assert "31.0 %" in told
    assert "17.0 %" in told
