"""The whole job of two runs: its first step and its parts, with conditions on them."""

from __future__ import annotations

import msgspec
import pytest

import whystall
from whystall.analysis.whole_job import JobPart, WholeJob
from whystall.cli.thresholds import parse
from whystall.diagnosis.comparison import Comparison, compare_reports
from whystall.diagnosis.job_changes import job_changes
from whystall.errors import UsageError
from whystall.report.comparison import render_comparison
from whystall.testing import trace

S = 1_000_000_000


def job(first_s: float, **parts_s: float) -> WholeJob:
    parts = [JobPart(part=name, ns=round(one * S)) for name, one in parts_s.items()]  # type: ignore[arg-type]
    return WholeJob(rank=0, wall_ns=sum(one.ns for one in parts), parts=parts, first_step_ns=round(first_s * S))


BASE = job(10, imports=4, weights=6, steps=20)
SLOWER = job(13, imports=4, weights=9, steps=20)


def compared(base: WholeJob | None, candidate: WholeJob | None) -> Comparison:
    built = trace()
    for number in range(5):
        built.operator("aten::mm", at=number * 1_000, lasts=900)
        built.step(number, at=number * 1_000, lasts=1_000)
    report = whystall.analyze(built.load())
    sides = [with_job(report, one) for one in (base, candidate)]
    return compare_reports(sides[0], sides[1], ("base", "candidate"))


def with_job(report: whystall.Report, one: WholeJob | None) -> whystall.Report:
    return msgspec.structs.replace(report, job=one)


def test_the_first_step_and_the_part_that_changed() -> None:
    found = {one.name: (one.delta_ns, one.beyond_noise) for one in job_changes(BASE, SLOWER)}
    assert found == {
        "job": (3 * S, True),
        "first-step": (3 * S, True),
        "weights": (3 * S, True),
        "imports": (0, False),
        "steps": (0, False),
    }


def test_a_difference_that_two_starts_of_one_job_have_is_noise() -> None:
    assert not any(one.beyond_noise for one in job_changes(BASE, job(10.3, imports=4.15, weights=6.15, steps=20)))


@pytest.mark.parametrize(
    ("condition", "crossed"),
    [
        ("first-step>+10%", True),
        ("first-step>+50%", False),
        ("first-step>+2s", True),
        ("first-step<-10%", False),
        ("part:weights>+1s", True),
        ("part:imports>+1%", False),
        ("job>+5%", True),
    ],
)
def test_a_slower_start_crosses_its_conditions(condition: str, crossed: bool) -> None:
    found = compared(BASE, SLOWER)
    assert parse(condition).is_open(found) is None
    assert parse(condition).crossed(found) is crossed


def test_without_the_start_of_both_a_condition_is_open() -> None:
    found = compared(BASE, None)
    assert found.job == []
    assert "watched from their start" in str(parse("first-step>+10%").is_open(found))
    assert not parse("first-step>+10%").crossed(found)


def test_another_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no part of the whole job is called 'weight'.*did you mean weights"):
        parse("part:weight>+10%").check()


def test_the_table_stands_in_the_text() -> None:
    text = render_comparison(compared(BASE, SLOWER), "terminal", rows=10)
    assert "WHOLE JOB, ONCE" in text
    assert "first-step" in text
