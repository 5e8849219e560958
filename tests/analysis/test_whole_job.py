"""The parts of a whole job add up to it, whatever is known of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.analysis.whole_job import whole_job
from whystall.run_folder.job_times import JobPlace, JobTimes

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
    imports_ns=1_200,
)


def parts(**changes: Any) -> dict[str, int]:
    ended = changes.pop("ended", 18_500)
    paused = changes.pop("paused", 0)
    job = whole_job(BEGAN, ended, {0: msgspec.structs.replace(SOME, **changes)}, {0: paused})
    assert job is not None
    return {one.part: one.ns for one in job.parts}


def test_each_instant_ends_a_part() -> None:
    assert parts(paused=700) == {
        "launch": 10,
        "interpreter": 50,
        "before torch": 40,
        "import torch": 2_000,
        "imports": 1_200,
        "set-up": 1_800,
        "first step": 500,
        "steps": 9_300,
        "recording": 700,
        "tail": 1_400,
        "exit": 500,
    }


def test_a_part_without_an_end_joins_the_next() -> None:
    assert parts(first_batch_unix_ns=None, imports_ns=0)["first step"] == 3_500


def test_a_job_that_goes_on_ends_at_its_last_instant() -> None:
    found = parts(ended=None, ended_unix_ns=None)
    assert list(found)[-1] == "steps"
    assert sum(found.values()) == 16_600 - BEGAN


def test_a_killed_job_has_its_end_by_the_launcher() -> None:
    found = parts(ended_unix_ns=None)
    assert found["exit"] == 18_500 - 16_600


def test_the_rank_that_was_last_to_its_first_step_is_shown() -> None:
    late = msgspec.structs.replace(SOME, first_step_unix_ns=7_700)
    job = whole_job(BEGAN, 18_500, {0: SOME, 1: late}, {})
    assert job is not None
    assert (job.rank, job.first_step_ns, job.ahead_ns) == (1, 6_700, 1_100)


def test_the_longest_lines_come_first() -> None:
    short, long = (JobPlace("train.py", 1, "main", "", "m:f", ns) for ns in (5, 50))
    job = whole_job(BEGAN, None, {0: JobTimes(capture_unix_ns=2_000, before_steps=[short, long])}, {})
    assert job is not None
    assert job.before_steps == [long, short]


def test_nothing_is_known_of_a_job_without_times() -> None:
    assert whole_job(BEGAN, 18_500, {}, {}) is None


INSTANTS = st.none() | st.integers(0, 1 << 62)


@given(
    began=st.integers(1, 1 << 62),
    ended=INSTANTS,
    times=st.builds(
        JobTimes,
        **{name: INSTANTS for name in JobTimes.__struct_fields__ if name.endswith("_unix_ns")},
        imports_ns=st.integers(0, 1 << 62),
    ),
    paused=st.integers(0, 1 << 62),
)
def test_parts_add_up_and_none_is_negative(began: int, ended: int | None, times: JobTimes, paused: int) -> None:
    """Also where instants are in disorder, as after a change of the machine's clock."""
    job = whole_job(began, ended, {0: times}, {0: paused})
    assert job is not None
    assert all(part.ns >= 0 for part in job.parts)
    assert job.wall_ns == sum(part.ns for part in job.parts)
    if ended is not None:
        assert job.wall_ns == max(ended - began, 0)
    known = [at for name in JobTimes.__struct_fields__ if name.endswith("_unix_ns") and (at := getattr(times, name))]
    if ended is None:
        assert job.wall_ns == max([at - began for at in known if at > began], default=0)


@pytest.mark.parametrize("field", [name for name in JobTimes.__struct_fields__ if name.endswith("_unix_ns")])
def test_each_instant_moves_time_between_two_parts(field: str) -> None:
    before, after = parts(imports_ns=0), parts(imports_ns=0, **{field: getattr(SOME, field) + 3})
    changed = {part: after[part] - before[part] for part in before if after[part] != before[part]}
    assert sorted(changed.values()) == [-3, 3]
