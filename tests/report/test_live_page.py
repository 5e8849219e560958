"""The page of a job that is running."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.report.document_samples import HOSTILE
from tests.report.test_html import outline, policy_allows_own_code_only

import whystall
from whystall.report.document_page import as_page
from whystall.report.live_page import LiveJob, LiveRank, live_document
from whystall.report.shell import unbroken

RANKS = (
    LiveRank(0, 1_240, 45_000_000, {"forward": 0.75, "input": 0.25, "save": 0.001}, 1.5),
    LiveRank(1, 1_241, 46_000_000, {"forward": 0.75, "input": 0.25}, None),
)
JOB = LiveJob("today", ended=False, ranks=RANKS, said=("12:00:00 first", "12:00:05 second"), report=None)


def page_of(job: LiveJob) -> str:
    return as_page(live_document(job, whole_report="report"))


def told(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html.partition("<main")[2]).split())


@pytest.mark.parametrize(
    ("job", "headline"),
    [
        (JOB, "today: step 1,241, 46.0 ms each"),
        (replace(JOB, ended=True), "today: ended at step 1,241, 46.0 ms each"),
        (replace(JOB, ranks=[replace(RANKS[0], median_ns=None)]), "today: step 1,240"),
        (replace(JOB, ranks=()), "today: no step has ended yet"),
    ],
)
def test_the_headline_says_where_the_job_is(job: LiveJob, headline: str) -> None:
    assert live_document(job, whole_report="report").headline == headline
    assert f"<h1>{unbroken(headline)}</h1>" in page_of(job)


def test_each_rank_has_its_pace_and_what_changed_last_stands_first() -> None:
    text = told(page_of(JOB))
    assert "0 1,240 45.0 ms 1.50 x 75.0 % 25.0 %" in text.replace("\u00a0", " ")
    assert "save" not in text
    assert text.index("12:00:05 second") < text.index("12:00:00 first")


def test_findings_have_their_gain_and_the_whole_report_a_link() -> None:
    report = whystall.analyze(whystall.demo_recording(), cache=False)
    found = next(one for one in report.findings if one.gain is not None)
    html = page_of(replace(JOB, report=report))

    assert found.title in told(html)
    assert found.id in told(html)
    assert '<a href="report">The whole report so far</a>' in html
    assert 'href="report"' not in page_of(JOB)


def test_it_is_whole_and_a_stranger_s_names_open_no_tag() -> None:
    html = page_of(replace(JOB, run=HOSTILE, said=(HOSTILE,), ranks=(replace(RANKS[0], shares={HOSTILE: 1.0}),)))
    parsed = outline(html)

    assert (parsed.errors, parsed.open) == ([], [])
    assert not {tag for tag, _ in parsed.tags} & {"img", "b"}
    policy_allows_own_code_only(html)
