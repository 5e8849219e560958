"""What is declared of sections holds.

Names fit, every format walks the same list, others can add to it without harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from tests.diagnosis.cases import line

import whystall
from whystall.analysis.run_results import RunSummary, SlowStep
from whystall.analysis.supply import InputSupply
from whystall.analysis.whole_job import JobPart, WholeJob
from whystall.mcp_server.folders import Folders
from whystall.mcp_server.tools import Tools, call
from whystall.report.html import render_html
from whystall.report.notebook import render_fragment
from whystall.report.ranks import by_rank
from whystall.report.registry import FORMATS, Options, render
from whystall.report.schema import Report
from whystall.report.sections import extensions
from whystall.report.sections.extensions import installed_sections
from whystall.report.sections.registry import CHAPTERS, SECTIONS
from whystall.report.sections.section import InMarkdown, InTerminal, OnPage, Section
from whystall.report.tables import Cell, Column, Limits, Table, table
from whystall.report.terminal import render_terminal
from whystall.run_folder.job_times import JobPlace

LIMITS = Limits(rows=50, name=80)


SHARES = {"input": 0.2, "forward": 0.2, "backward": 0.3, "optimizer": 0.1, "save": 0.05, "gc": 0.05, "other": 0.1}


def watched(report: Report) -> Report:
    """The same with the samples of a run."""
    slow = SlowStep(step=7, duration_ns=90, excess_ns=80, lost_ns={"input": 70})
    run = RunSummary(
        rank=0, steps=90, profiled=3, total_ns=990, p10_ns=9, median_ns=10, p90_ns=11, p99_ns=12, max_ns=90,
        trend_per_1000_steps=0.01, shares=SHARES, on_cpu_share=0.9, involuntary_switches_per_step=0.0,
        major_faults_per_step=0.0, rss_start_bytes=1, rss_end_bytes=1, slow_ns=80, slow=[slow],
        durations_ns=[10] * 9 + [90], places=[line(0.5)],
    )  # fmt: skip
    supply = InputSupply(
        rank=0, samples_per_step=32, demand_per_s=640.0, supply_per_s=426.7, at_least=False, waited_share=1 / 3
    )
    job = WholeJob(
        rank=0,
        wall_ns=100,
        parts=[JobPart(part="set-up", ns=60), JobPart(part="steps", ns=40)],
        first_step_ns=60,
        before_steps=[JobPlace("train.py", 9, "main", "data = read()", "json:load", 50)],
    )
    return msgspec.structs.replace(report, run=[run], supply=supply, job=job)


def of_many_ranks(report: Report) -> Report:
    """The report with its first device on forty ranks."""
    devices = [msgspec.structs.replace(report.devices[0], rank=rank) for rank in range(40)]
    return msgspec.structs.replace(report, devices=devices)


def parts(report: Report, section: Section) -> Iterable[Any]:
    """What a section is made from, each time it is."""
    if section.scope in {"job", "capture"}:
        return [report]
    ranks = by_rank(report)
    if section.scope == "rank":
        return ranks
    return [rank.of_device(device) for rank in ranks for device in rank.devices]


def test_every_section_and_chapter_is_declared_once() -> None:
    ids = [section.id for section in SECTIONS]
    assert len(set(ids)) == len(ids)
    known = [chapter.id for chapter in CHAPTERS]
    assert len(set(known)) == len(known)
    assert {section.chapter for section in SECTIONS if section.page} == set(known)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.id)
def test_a_section_makes_a_table_of_its_name_with_the_columns_that_formats_pick(
    samples: dict[str, Report], section: Section
) -> None:
    reports = [*samples.values(), watched(samples["gpu"]), of_many_ranks(samples["gpu"])]
    made = [section.build(part, LIMITS) for report in reports for part in parts(report, section)]
    there = [one for one in made if one]
    assert there, "no sample shows it"
    assert {one.id for one in there} == {section.id}
    labels = {column.label for one in there for column in one.columns}
    for shown in (section.terminal, section.markdown):
        assert set(shown.columns if shown else ()) <= labels


def test_an_absent_chapter_says_why(samples: dict[str, Report]) -> None:
    page = render_html(samples["cpu"])
    assert "Not in this recording" in page
    assert "<strong>Communication</strong>: no collectives ran." in page
    assert "<strong>Kernels</strong>" in page


def other(**changes: Any) -> Section:
    """A section of somebody else's, of the whole job."""

    def build(report: Report, limits: Limits) -> Table:
        return table("mine", "My own", "Mine.", (Column("Word", "text"),), [(Cell(f"found {len(report.devices)}"),)])

    given: dict[str, Any] = {"id": "mine", "scope": "job", "build": build, "terminal": InTerminal(rows=3), **changes}
    return Section(**given)


@pytest.mark.parametrize("format_", ["terminal", "markdown", "html"])
@pytest.mark.parametrize("scope", ["job", "capture"])
def test_a_section_of_others_stands_in_every_format(samples: dict[str, Report], format_: str, scope: str) -> None:
    options = Options(more_sections=[other(scope=scope, page=OnPage(chapter=None if scope == "job" else "capture"))])
    text = render(samples["gpu"], format_, options)
    assert "found 1" in text
    assert "found 1" not in render(samples["gpu"], format_)


@pytest.mark.parametrize("format_", ["terminal", "markdown", "html"])
def test_a_format_that_a_section_leaves_out_does_not_show_it(samples: dict[str, Report], format_: str) -> None:
    ways = {"terminal": "terminal", "markdown": "markdown", "html": "page"}
    options = Options(more_sections=[other(**{ways[format_]: None})])
    assert render(samples["gpu"], format_, options) == render(samples["gpu"], format_)


def test_what_a_short_report_leaves_out_stands_in_the_long_one(samples: dict[str, Report]) -> None:
    sections = [other(terminal=InTerminal())]
    assert "MY OWN" not in render(samples["gpu"], "terminal", Options(more_sections=sections))
    assert "MY OWN" in render(samples["gpu"], "terminal", Options(more_sections=sections, verbose=True))
    few = Options(more_sections=[other(terminal=InTerminal(rows=3, fewest=2), markdown=InMarkdown(fewest=2))])
    assert "MY OWN" not in render(samples["gpu"], "terminal", few)
    assert "My own" not in render(samples["gpu"], "markdown", few)


def failing(_part: Any, _limits: Limits) -> Table:
    raise ZeroDivisionError("no step")


def nothing(_part: Any, _limits: Limits) -> Any:
    return None


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (failing, "the section could not be made: ZeroDivisionError: no step"),
        (nothing, "the section could not be made: NoneType is no table"),
    ],
)
def test_a_section_that_fails_is_a_sentence_in_every_format(
    samples: dict[str, Report], monkeypatch: pytest.MonkeyPatch, build: Any, sentence: str
) -> None:
    monkeypatch.setattr(extensions, "brought", lambda *_: ([other(build=build)], []))
    for format_ in FORMATS:
        text = whystall.render(samples["gpu"], format_)
        assert (sentence in text.replace("&#58;", ":")) == (format_ in {"terminal", "markdown", "html"})


def test_sections_that_cannot_be_loaded_are_a_sentence(
    samples: dict[str, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = "the sections of other could not be loaded: no module"
    monkeypatch.setattr(extensions, "brought", lambda *_: ([], [failure]))
    assert failure in whystall.render(samples["gpu"], "terminal", verbose=True)
    assert failure in whystall.render(samples["gpu"], "html")
    assert len(installed_sections()) == 1


def test_clients_of_the_server_see_sections_of_others(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "brought", lambda *_: ([other()], []))
    (tmp_path / "trace.json.gz").write_bytes(whystall.demo_recording().read_bytes())
    assert "MY OWN\nWord\nfound 1\n" in call(Tools(Folders([tmp_path])), "analyze", {"path": "trace.json.gz"})


def test_a_notebook_shows_the_sections_that_are_declared_for_it(samples: dict[str, Report]) -> None:
    assert [section.id for section in SECTIONS if section.notebook] == ["devices"]
    assert render_fragment(samples["gpu"]).count("<table>") == 1


def test_supply_and_demand_are_one_line_where_they_are_known(samples: dict[str, Report]) -> None:
    plain, told = samples["gpu"], watched(samples["gpu"])

    (row,) = [line.split() for line in render_terminal(told, Options(verbose=True)).splitlines() if "426.7" in line]
    assert row[:4] == ["0", "426.7", "640.0", "32"]
    assert "Input: supply and demand" in render_html(told)
    assert "supply and demand" not in render_terminal(plain, Options(verbose=True)).lower()
