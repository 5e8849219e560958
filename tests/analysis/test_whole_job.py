"""The parts of a whole job add up to it, whatever is known of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.analysis.whole_job import part_of, whole_job
from whystall.run_folder.job_times import MODEL, JobPlace, JobTimes

BEGAN = 1_000
SOME = JobTimes(
    process_unix_ns=1_010,
    capture_unix_ns=1_060,
    torch_unix_ns=1_100,
    imported_unix_ns=3_100,
    first_batch_unix_ns=6_100,
    first_step_unix_ns=6_600,
    last_step_unix_ns=16_600,
    ended_unix_ns=18_000,
    before={"imports": 1_200, MODEL: 500, "": 300},
    within={"workers": 2_000, "checkpoint": 300},
    after_steps=[JobPlace("a.py", 9, "main", "evaluate()", "a:evaluate", 400, "", "evaluation")],
)


def parts(**changes: Any) -> dict[tuple[str, str], int]:
    ended = changes.pop("ended", 18_500)
    paused = changes.pop("paused", 0)
    job = whole_job(BEGAN, ended, {0: msgspec.structs.replace(SOME, **changes)}, {0: paused})
    assert job is not None
    return {(one.phase, one.part): one.ns for one in job.parts}


def test_each_instant_ends_a_part_and_looks_split_it() -> None:
    assert parts(paused=700) == {
        ("start", "launch"): 10,
        ("start", "interpreter"): 50,
        ("start", "before torch"): 40,
        ("start", "import torch"): 2_000,
        ("start", "imports"): 1_200,
        ("start", "set-up"): 1_800,
        ("start", "first step"): 500,
        ("steps", "workers"): 2_000,
        ("steps", "saves"): 300,
        ("steps", "steps"): 7_000,
        ("steps", "recording"): 700,
        ("end", "evaluation"): 400,
        ("end", "tail"): 1_000,
        ("end", "exit"): 500,
    }


def test_the_first_batch_divides_nothing() -> None:
    assert parts(first_batch_unix_ns=None) == parts()


def test_looks_that_overlap_an_instant_share_the_time_between() -> None:
    found = parts(before={"imports": 6_000, "weights": 1_000})
    assert (found["start", "imports"], found["start", "weights"], found["start", "set-up"]) == (3_000, 500, 0)


def test_a_job_that_goes_on_ends_at_its_last_instant() -> None:
    found = parts(ended=None, ended_unix_ns=None)
    assert list(found)[-1] == ("steps", "steps")
    assert sum(found.values()) == 16_600 - BEGAN


def test_the_rank_that_the_others_waited_for_stands_for_the_job() -> None:
    """Rank 0 was ready after 5,600 - 900 and waited; rank 1 took all of its 5,500 itself."""
    waits = msgspec.structs.replace(SOME, before={"group": 600, "ranks": 300})
    late = msgspec.structs.replace(SOME, first_step_unix_ns=6_500)
    job = whole_job(BEGAN, 18_500, {0: waits, 1: late}, {})
    assert job is not None
    assert (job.rank, job.ahead_ns, job.first_step_ns, job.first_batch_ns, job.waited_ns) == (1, 800, 5_500, 5_100, 0)
    assert [(one.rank, one.first_step_ns, one.own_ns) for one in job.others] == [(0, 5_600, 4_700)]


def test_a_batch_after_the_first_step_is_not_its_first() -> None:
    job = whole_job(BEGAN, 18_500, {0: msgspec.structs.replace(SOME, first_batch_unix_ns=7_000)}, {})
    assert job is not None
    assert job.first_batch_ns is None


@pytest.mark.parametrize(
    ("work", "role", "part"),
    [
        ("workers", "evaluation", "workers"),
        (MODEL, "evaluation", "evaluation"),
        ("", "checkpoint", "saves"),
        (MODEL, "", None),
        ("", "", None),
    ],
)
def test_work_counts_before_the_occasion_and_the_model_after_it(work: str, role: str, part: str | None) -> None:
    assert part_of(JobPlace("a.py", 1, "main", "run()", "a:run", 5, work, role)) == part


def test_no_rank_no_ledger() -> None:
    assert whole_job(BEGAN, 2_000, {}, {}) is None


def test_lines_come_by_their_time() -> None:
    short = JobPlace("a.py", 1, "main", "x()", "a:x", 5)
    long = JobPlace("a.py", 2, "main", "y()", "a:y", 50)
    job = whole_job(BEGAN, None, {0: JobTimes(capture_unix_ns=2_000, before_steps=[short, long])}, {})
    assert job is not None
    assert job.before_steps == [long, short]


INSTANT = st.none() | st.integers(0, 1 << 62)
KINDS = st.dictionaries(
    st.sampled_from(["imports", "weights", "workers", "checkpoint", "", MODEL]), st.integers(0, 1 << 62)
)


@given(
    st.integers(0, 1 << 62),
    st.none() | st.integers(0, 1 << 62),
    st.builds(
        JobTimes,
        process_unix_ns=INSTANT,
        capture_unix_ns=INSTANT,
        torch_unix_ns=INSTANT,
        imported_unix_ns=INSTANT,
        first_batch_unix_ns=INSTANT,
        first_step_unix_ns=INSTANT,
        last_step_unix_ns=INSTANT,
        ended_unix_ns=INSTANT,
        before=KINDS,
        within=KINDS,
    ),
    st.integers(0, 1 << 62),
)
def test_parts_are_never_negative_and_add_up_to_the_wall_clock(
    began: int, ended: int | None, times: JobTimes, paused: int
) -> None:
    job = whole_job(began, ended, {0: times}, {0: paused})
    assert job is not None
    assert all(part.ns >= 0 for part in job.parts)
    assert job.wall_ns == sum(part.ns for part in job.parts)
    if ended is not None:
        assert job.wall_ns == max(ended - began, 0)


@pytest.mark.parametrize("field", ["capture_unix_ns", "first_step_unix_ns", "last_step_unix_ns", "ended_unix_ns"])
def test_a_later_instant_moves_time_from_one_part_to_its_neighbour(field: str) -> None:
    before, after = parts(), parts(**{field: getattr(SOME, field) + 3})
    changed = sorted(after[name] - before[name] for name in before if after[name] != before[name])
    assert changed == [-3, 3]
