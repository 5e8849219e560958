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
    ("latest", "waits_ms", "computes"),
    [
        ((36, 67, 9), 0, True),  # all of a step takes an eighth longer
        ((32, 82, 9), 0, True),  # one part, as where memory is slower
        ((45, 90, 20), 0, False),  # half as long again is more than machines differ by
        ((32, 60, 8), 12, False),  # a wait
        ((35, 66, 8), 9, False),  # mostly that
        ((36, 70, 8), 5, True),
    ],
)
def test_what_computing_takes_longer_may_be_the_machine(
    latest: tuple[float, float, float], waits_ms: float, *, computes: bool
) -> None:
    after = of_parts(*latest)
    after["input"][:] = round(waits_ms * MS)
    after["step"] += round(waits_ms * MS)
    pace = pace_of(of_parts(32, 60, 8), after)
    assert pace is not None
    assert (pace.slower, pace.computes) == (True, computes)


def test_few_steps_are_no_pace() -> None:
    assert pace_of(steps(FEWEST - 1, step_ms=1, forward_ms=1), steps(64, step_ms=1, forward_ms=1)) is None


def test_a_job_of_which_every_second_step_takes_longer_is_slower() -> None:
    latest = steps(64, step_ms=100, forward_ms=60)
    latest["step"][::2] *= 9
    pace = pace_of(steps(64, step_ms=100, forward_ms=60), latest)
    assert pace is not None
    assert pace.slower
    assert pace.ratio == pytest.approx(5)
