"""Verdicts by hand on recorded traces (labels.json beside them): what may stand on top, what must not be said.

Of the rebuilt reports of slow jobs (`recordings/reports/truth.json`) the cause and what its repair brought are known.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from tests.conftest import TRACES

import whystall
from whystall.report.overview import headline
from whystall.report.schema import Report

RECORDINGS: Final = TRACES.parent / "recordings"
REPORTS: Final = RECORDINGS / "reports"
# What a report's cause is called here; the first finding has to be one of these.
CAUSES: Final = {
    "peft": "host.gc",
    "hsdp": "communication.redundant-sync",
    "eplb": "communication.expert-imbalance",
    "rerecord": "host.recompile",
    "hipgaps": None,
    "underrecorded": None,
    "queue-attention": "compute.unfused-attention",
    "queue-products": "compute.fp32-matmul",
}


def known(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


LABELS: Final = {
    str(folder / name): label
    for folder in (TRACES, RECORDINGS)
    for name, label in known(folder / "labels.json").items()
}
TRUTH: Final = known(REPORTS / "truth.json")


@cache
def report_of(path: str) -> Report:
    if not Path(path).exists():
        reason = f"{path} is not beside the repository (../shared)"
        pytest.fail(reason) if os.environ.get("WHYSTALL_REQUIRE_TRACES") == "1" else pytest.skip(reason)
    return whystall.analyze(path, cache=False)


def told_in(report: Report) -> str:
    remedies = [finding.remedy.text + (finding.remedy.patch or "") for finding in report.findings if finding.remedy]
    said = [report.verdict.summary, report.verdict.basis, *report.source.warnings]
    return " ".join([*said, *(finding.title for finding in report.findings), *remedies])


@pytest.mark.real_traces
@pytest.mark.parametrize("path", LABELS or ["(none)"], ids=[Path(path).name for path in LABELS] or None)
def test_the_verdict_is_what_people_say_of_the_trace(path: str) -> None:
    report = report_of(path)
    label, told = LABELS[path], told_in(report)
    fired = {finding.id for finding in report.findings if finding.severity != "info"}
    named = {finding.id for finding in report.findings}

    if "first" in label:
        assert report.verdict.cause in label["first"], label.get("why")
    assert all(named.intersection(one_of) for one_of in label.get("must", [])), label.get("why")
    assert not fired.intersection(label.get("forbid", [])), label.get("why")
    assert all(re.search(text, told) for text in label.get("say", [])), label.get("why")
    assert not any(re.search(text, told) for text in label.get("notsay", [])), label.get("why")


@pytest.mark.real_traces
@pytest.mark.parametrize("name", TRUTH or ["(none)"])
def test_a_report_is_named_first_and_priced_as_its_repair_was(name: str) -> None:
    report = report_of(str(REPORTS / name))
    truth = TRUTH[name]
    assert report.verdict.cause == CAUSES[name]
    if report.verdict.gain is not None:
        # Of two causes that were repaired together the first is priced alone.
        repaired = truth.get("gain_without_collect", truth["gain"])
        assert report.verdict.gain.floor <= repaired <= report.verdict.gain.ceiling
    plan = report.plan
    if name == "peft":
        assert plan is not None
        both = plan.speedups[plan.causes.index("memory.allocator-retry")]
        assert both == pytest.approx(truth["gain"], rel=0.1)


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "path", [*LABELS, *(str(REPORTS / name) for name in TRUTH)] or ["(none)"], ids=lambda path: Path(path).name
)
def test_numbers_of_a_report_keep_within_bounds(path: str) -> None:
    """A gain of the host within window / busy, shares within the whole, the floor below the ceiling, no failure."""
    report = report_of(path)
    assert not [one for one in report.source.warnings if "error in whystall" in one]
    for device in report.devices:
        assert 0 <= device.compute_ns <= device.busy_ns <= device.window_ns
        assert device.ledger.total_ns == device.window_ns
    ranks = {device.rank for device in report.devices}
    figures = report.efficiency
    assert all(0 <= value <= 1 for value in (figures.mfu, figures.hfu, figures.tensor_core_share) if value is not None)
    assert report.fidelity is None or 0 <= report.fidelity <= 1
    for finding in report.findings:
        gain = finding.gain
        shares = [row.value for row in finding.evidence if row.unit == "share"]
        assert all(0 <= float(value) <= 1 for value in shares), finding.id
        if gain is not None and finding.severity != "info" and gain.method.startswith("replay"):
            saved = (gain.step_ns or 0) * (1 - 1 / gain.expected)
            told = any(row.what.startswith("saved beyond its own time") for row in finding.evidence)
            assert told or saved <= finding.attributed_ns_per_step * 1.06 + 1_000, finding.id
        if gain is None:
            continue
        assert 1 <= gain.floor <= gain.expected <= gain.ceiling
        of_host = finding.id.startswith(("host.", "input.")) and finding.id != "host.pageable-copy"
        if of_host and len(ranks) == 1 and finding.id != "host.recompile":
            bound = max(device.window_ns / max(device.busy_ns, 1) for device in report.devices)
            steps = [step for device in report.devices for step in device.steps]
            # Steps differ: the replayed ones may have idled more than all that was recorded.
            bound = max([bound, *(step.window_ns / max(step.busy_ns, 1) for step in steps)])
            assert gain.expected <= bound * 1.01


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "path", [*LABELS, *(str(REPORTS / name) for name in TRUTH)] or ["(none)"], ids=lambda path: Path(path).name
)
def test_sentences_state_the_shares_of_the_table_below_them(path: str) -> None:
    report = report_of(path)
    bar = headline(report)
    said = f"{report.verdict.summary} {report.verdict.basis}"
    computes = re.findall(r"computes (\d+\.\d %)", said)
    if bar is None or not computes:
        pytest.skip("no sentence on the device's time")
    percent = {segment.part.key: segment.percent for segment in bar.segments}
    assert set(computes) == {percent.get("compute", "0.0 %")}
    largest = re.findall(r"the largest(?: loss)? is [^;.]*?\((\d+\.\d %)\)", said)
    losses = [segment.tenths for segment in bar.segments if segment.part.key != "compute"]
    assert set(largest) <= {f"{max(losses, default=0) / 10:.1f} %"}
