"""Where a finding is to be seen: at its marks, else at its events, else in a step."""

from __future__ import annotations

import msgspec
import pytest
from tests.view.conftest import Fetching

from whystall.diagnosis.finding import Evidence, EvidenceEvent
from whystall.view.places import Place, place_of, rank_of


def test_a_finding_of_a_step_is_seen_at_its_marks(job: Fetching) -> None:
    place = place_of(job.report, job.report.findings[0], 0, job.trace)
    assert place.focus in job.fetches
    assert place.window[0] <= place.focus[0] < place.focus[1] <= place.window[1]


def test_the_longest_of_the_marks_shows_it_and_the_first_of_equals() -> None:
    marks = ((10, 20), (30, 50), (60, 80))
    assert Place(0, 0, (0, 100), marks).focus == (30, 50)
    assert Place(0, 0, (0, 100), ()).focus is None


@pytest.mark.parametrize("inside", [True, False])
def test_a_finding_without_marks_is_seen_at_its_longest_event(job: Fetching, *, inside: bool) -> None:
    step = job.report.devices[0].steps[4]
    begin = job.fetches[0][0] + step.start_ns + 5_000 if inside else job.fetches[-1][1] + 10_000_000
    events = [
        EvidenceEvent(rank=0, ts_ns=begin, duration_ns=7_000, name="a"),
        EvidenceEvent(rank=0, ts_ns=begin + 9_000, duration_ns=10, name="b"),
        EvidenceEvent(rank=1, ts_ns=3, duration_ns=10_000, name="of another clock"),
    ]
    evidence = [Evidence(what="w", value=1, unit="", events=events)]
    finding = msgspec.structs.replace(job.report.findings[0], in_step=None, evidence=evidence)
    place = place_of(job.report, finding, 0, job.trace)
    assert place.marks == ((begin, begin + 7_000),)
    wanted = step.window_ns if inside else 2_000_000 + 7_000
    assert place.window[1] - place.window[0] == wanted
    assert place.window[0] <= begin < place.window[1]


def test_without_a_finding_a_step_is_seen_with_what_the_host_did_for_it(job: Fetching) -> None:
    place = place_of(job.report, None, 0, job.trace)
    drawn = job.report.timelines[0]
    assert place.marks == ()
    number = int((drawn.step or "").partition("#")[2])
    assert place.window[0] == job.fetches[number][0]
    assert place.window[1] == job.fetches[0][0] + drawn.start_ns + drawn.window_ns


def test_the_rank_is_the_finding_s_if_it_was_recorded(job: Fetching) -> None:
    finding = job.report.findings[0]
    assert rank_of(job.report, finding) == 0
    assert rank_of(job.report, None) == 0
    unrecorded = msgspec.structs.replace(job.report.source, files=[])
    assert rank_of(msgspec.structs.replace(job.report, source=unrecorded), finding) is None
    assert finding.in_step
    elsewhere = msgspec.structs.replace(finding.in_step, rank=7)
    assert rank_of(job.report, msgspec.structs.replace(finding, in_step=elsewhere)) == 0
