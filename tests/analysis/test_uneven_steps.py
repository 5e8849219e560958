"""How unevenly ranks work in the same steps, from samples whose truth is known by construction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from whystall.analysis.run_summary import run_summaries
from whystall.analysis.uneven_steps import uneven_steps
from whystall.run_folder.samples import PROFILED, STEP_COLUMNS
from whystall.trace.samples import RunSamples


def rank(
    *cpu_us: int | None,
    first: int = 1,
    flags: dict[int, int] | None = None,
    durations_us: list[int] | None = None,
    **more: Any,
) -> RunSamples:
    """One rank's samples: how long its thread was on a core in each step."""
    rows: list[dict[str, int | None]] = [
        {
            **dict.fromkeys(STEP_COLUMNS, 0),
            "step": first + at,
            "duration_us": durations_us[at] if durations_us else 1000,
            "cpu_us": cpu,
            "flags": (flags or {}).get(first + at, 0),
        }
        for at, cpu in enumerate(cpu_us)
    ]
    machine = pl.DataFrame(schema={"at_unix_ns": pl.Int64})
    steps = pl.DataFrame(rows, schema=dict.fromkeys(STEP_COLUMNS, pl.Int64))
    return RunSamples("s", more.get("rank", 0), 2, steps, machine, 0)


def test_ranks_that_work_longer_in_turn() -> None:
    """Of 900 and 500 us one has 200 above the mean in each step, and neither in the long run."""
    found = uneven_steps([rank(*[900, 500] * 20), rank(*[500, 900] * 20)])
    assert found is not None
    assert (found.above_ns, found.usual_ns, found.of_one_rank_ns) == (200_000, 200_000, 0)
    assert found.steps == 36  # the first tenth is the start


def test_one_rank_that_always_works_longer() -> None:
    found = uneven_steps([rank(*[500] * 40), rank(*[900] * 40), rank(*[500] * 40)])
    assert found is not None
    assert found.above_ns == found.usual_ns == found.of_one_rank_ns == pytest.approx(900_000 - 1_900_000 / 3, abs=1)


def test_what_is_done_now_and_then_is_not_usual() -> None:
    found = uneven_steps([rank(*([500] * 9 + [5_500]) * 4), rank(*[500] * 40)])
    assert found is not None
    assert found.usual_ns == 0
    assert found.above_ns == pytest.approx(2_500_000 * 4 / 36, abs=1)


def test_the_same_steps_are_compared_however_each_rank_was_sampled() -> None:
    """One began five steps later, and a recorded step of it is left out of all."""
    one, other = rank(*[900, 500] * 30), rank(*[900, 500] * 28, first=6, flags={20: PROFILED})
    found = uneven_steps([one, other])
    assert found is not None
    assert (found.above_ns, found.steps) == (200_000, 55 - 1 - 5)
    assert uneven_steps([one, rank(*[900, 500] * 30, first=100)]) is None


def test_of_one_rank_of_few_steps_and_of_steps_that_share_a_count_nothing_is_said() -> None:
    assert uneven_steps([rank(*[900] * 40)]) is None
    assert uneven_steps([rank(*[900] * 20), rank(*[500] * 20)]) is None
    assert uneven_steps([rank(*[900, None] * 40), rank(*[500] * 80)]) is None


def test_ranks_that_do_not_wait_for_each_other_have_steps_of_different_length() -> None:
    one, other = [900, 500] * 20, [500, 900] * 20
    found = uneven_steps([rank(*one, durations_us=one), rank(*other, durations_us=other)])
    assert found is not None
    assert found.apart_ns == 400_000
    together = uneven_steps([rank(*one), rank(*other)])
    assert together is not None
    assert together.apart_ns == 0


def test_a_step_that_comes_twice_is_one() -> None:
    """A damaged file: the numbers of one rank are no steps of the other."""
    assert uneven_steps([rank(*[900] * 40, *[900] * 40), rank(*[500] * 40, first=200)]) is None
    doubled = rank(*[900] * 40)
    doubled = replace(doubled, steps=pl.concat([doubled.steps, doubled.steps]))
    assert uneven_steps([doubled, rank(*[500] * 40, first=200)]) is None


def test_steps_at_another_pace_are_not_counted() -> None:
    """What the latest steps make is told of them: the summary's other figures are of that pace."""
    slow, fast = [1_000_000] * 60, [100_000] * 60
    one = rank(*[900_000, 500_000] * 30, *[60_000] * 60, durations_us=slow + fast)
    other = rank(*[500_000, 900_000] * 30, *[60_000] * 60, durations_us=slow + fast, rank=1)
    runs = run_summaries([one, other])
    assert [run.uneven is not None and run.uneven.above_ns for run in runs] == [0, 0]


def test_each_rank_of_a_job_is_told() -> None:
    runs = run_summaries([rank(*[900, 500] * 20), rank(*[500, 900] * 20, rank=1)])
    assert [run.uneven is not None and run.uneven.above_ns for run in runs] == [200_000, 200_000]
    (alone,) = run_summaries([rank(*[900, 500] * 20)])
    assert alone.uneven is None
