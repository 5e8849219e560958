"""The picture beside a finding, in numbers and words."""

from __future__ import annotations

import msgspec
import pytest
from tests.findings import bare_finding

from whystall.diagnosis.finding import Gain, InStep, Scope
from whystall.report.pictures import WIDE, picture_of

STEP = 100_000_000
GAIN = Gain(floor=1.25, expected=2.0, ceiling=4.0, method="", step_ns=STEP)
PLACE = InStep(
    rank=1, device=0, step="ProfilerStep#7", window_ns=STEP, marks=[(0, 10_000_000), (50_000_000, 40_000_000)]
)
FINDING = bare_finding(
    "host.python",
    title="Python holds up the step",
    severity="critical",
    scope=Scope(ranks=[1], steps=[]),
    gain=GAIN,
    in_step=PLACE,
)


def test_marks_and_what_is_left_are_to_scale() -> None:
    picture = picture_of(FINDING, GAIN)
    assert picture is not None
    assert [(bar.x, bar.width) for bar in picture.marks] == [(0.0, 100.0), (500.0, 400.0)]
    assert picture.after is not None
    assert picture.unsure is not None
    assert picture.after.width == WIDE / 2
    assert (picture.unsure.x, picture.unsure.x + picture.unsure.width) == (250.0, 800.0)
    assert picture.timeline == "r1d0-timeline-figure"
    assert picture.words == (
        "In ProfilerStep#7 (100 ms) it is at work where marked, 50.0 ms in all. "
        "Below: a step without it, 50.0 ms (25.0 ms to 80.0 ms) of 100 ms."
    )


def test_what_is_not_known_is_not_drawn() -> None:
    bare = msgspec.structs.replace(FINDING, in_step=None)
    assert picture_of(bare, None) is None
    without_place = picture_of(bare, GAIN)
    assert without_place is not None
    assert (without_place.marks, without_place.timeline) == ((), None)
    without_gain = picture_of(FINDING, None)
    assert without_gain is not None
    assert (without_gain.after, without_gain.unsure) == (None, None)


@pytest.mark.parametrize(
    "place",
    [
        {"window_ns": 0},
        {"window_ns": -5},
        {"marks": [(-5, 10), (10**18, 10**18), (5, -3)]},
        {"marks": [(at, 1) for at in range(5_000)]},
        {"step": "<script>" + "x" * 10_000},
    ],
)
def test_a_picture_of_nonsense_stays_in_its_frame(place: dict[str, object]) -> None:
    strange = msgspec.structs.replace(FINDING, in_step=msgspec.structs.replace(PLACE, **place))
    picture = picture_of(strange, GAIN)
    assert picture is not None
    assert len(picture.marks) <= 120
    assert all(0 <= bar.x <= WIDE and 0 < bar.width <= WIDE for bar in picture.marks)
    assert len(picture.words) < 400
