"""A running job's latest steps beside its first ones."""

from __future__ import annotations

import numpy as np
import pytest

from whystall.analysis.pace import Parts, pace_of
from whystall.analysis.pace_changes import FEWEST

MS = 1_000_000


def steps(count: int, *, step_ms: float, forward_ms: float, input_ms: float = 0.0, scatter: float = 0.0) -> Parts:
    scatter_ms = np.random.default_rng(count).normal(0, scatter * step_ms, count)
    whole = np.array((step_ms + scatter_ms) * MS, np.int64)
    parts = {"forward": forward_ms, "input": input_ms, "backward": 0.0, "optimizer": 0.0, "save": 0.0, "gc": 0.0}
    return {"step": whole, **{name: np.full(count, round(ms * MS), np.int64) for name, ms in parts.items()}}


def test_a_job_that_waits_longer_for_input_is_slower_by_that() -> None:
    pace = pace_of(steps(64, step_ms=100, forward_ms=60), steps(64, step_ms=130, forward_ms=62, input_ms=26))
    assert pace is not None
    assert (pace.median_ns, pace.slower) == (130 * MS, True)
    assert pace.ratio == pytest.approx(1.3)
    assert (pace.grown, pace.grown_ns) == ("input", 26 * MS)
    assert pace.shares["forward"] == pytest.approx(62 / 130)
    assert sum(pace.shares.values()) == pytest.approx(1)


def test_what_no_part_names_grows_as_the_rest() -> None:
    pace = pace_of(steps(64, step_ms=100, forward_ms=60), steps(64, step_ms=150, forward_ms=60))
    assert pace is not None
    assert (pace.grown, pace.grown_ns) == ("other", 50 * MS)


@pytest.mark.parametrize(
    ("step_ms", "scatter"),
    [(105, 0.0), (60, 0.0), (112, 0.4)],  # a little longer, faster, and no more than steps differ by
)
def test_a_job_that_keeps_its_pace_is_not_slower(step_ms: float, scatter: float) -> None:
    first = steps(64, step_ms=100, forward_ms=10, scatter=scatter)
    pace = pace_of(first, steps(63, step_ms=step_ms, forward_ms=10, scatter=scatter))
    assert pace is not None
    assert not pace.slower
    assert pace.grown is None


def of_parts(forward_ms: float, backward_ms: float, rest_ms: float) -> Parts:
    parts = steps(64, step_ms=forward_ms + backward_ms + rest_ms, forward_ms=forward_ms)
    parts["backward"][:] = round(backward_ms * MS)
    return parts


@pytest.mark.parametrize(
    ("latest", "alike"),
    [
        ((36, 67, 9), True),  # the machine: all of a step takes an eighth longer
        ((37, 69, 6), True),  # a part that is small does not matter
        ((30, 72, 9), False),  # one part
        ((33, 75, 9), False),  # all of it a tenth, and one part more
        ((45, 84, 12), False),  # so much is told whatever grew
    ],
)
def test_all_of_a_step_that_grows_a_little_is_the_machines_pace(
    latest: tuple[float, float, float], *, alike: bool
) -> None:
    pace = pace_of(of_parts(32, 60, 8), of_parts(*latest))
    assert pace is not None
    assert (pace.slower, pace.alike) == (True, alike)


def test_of_one_large_part_nobody_knows_whether_it_is_the_machine() -> None:
    pace = pace_of(of_parts(95, 0, 5), of_parts(110, 0, 5))
    assert pace is not None
    assert (pace.slower, pace.alike) == (True, False)


def test_few_steps_are_no_pace() -> None:
    assert pace_of(steps(FEWEST - 1, step_ms=1, forward_ms=1), steps(64, step_ms=1, forward_ms=1)) is None


def test_a_job_of_which_every_second_step_takes_longer_is_slower() -> None:
    latest = steps(64, step_ms=100, forward_ms=60)
    latest["step"][::2] *= 9
    pace = pace_of(steps(64, step_ms=100, forward_ms=60), latest)
    assert pace is not None
    assert pace.slower
    assert pace.ratio == pytest.approx(5)
