"""What of a step that is not recorded is saved: recording makes calls longer, and few long ones but little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.diagnosis.cases import found_in, run
from tests.diagnosis.jobs import Job

from whystall.diagnosis.candidate import _unrecorded
from whystall.replay.graph import Change

FEW_LONG, MANY_SHORT = 10, 990
DURATIONS = np.array([400_000] * FEW_LONG + [6_000] * MANY_SHORT)
STEP = int(DURATIONS.sum())


def case(recording_ns: int) -> Any:
    """A step of ten long calls and many short ones."""
    graph = SimpleNamespace(duration=DURATIONS)
    return SimpleNamespace(recording_ns=recording_ns, replayed=graph, step_ns=STEP, in_window=lambda nodes: nodes)


def without(long: bool) -> Change:
    kept = DURATIONS.copy()
    kept[:FEW_LONG] *= not long
    kept[FEW_LONG:] *= long
    return Change(duration=kept)


def test_few_long_calls_are_more_of_a_step_that_is_not_recorded() -> None:
    """Each call takes 3 us less there: the short ones half, the long ones nearly as long."""
    longer = 3_000 * len(DURATIONS)
    saved = FEW_LONG * 400_000 / STEP
    truth = FEW_LONG * 397_000 / (STEP - longer)
    assert _unrecorded(case(longer), without(long=True), saved) == pytest.approx(truth, rel=1e-6)
    assert truth > saved


def test_many_short_calls_are_less_of_it() -> None:
    longer = 3_000 * len(DURATIONS)
    saved = MANY_SHORT * 6_000 / STEP
    assert _unrecorded(case(longer), without(long=False), saved) == pytest.approx(
        MANY_SHORT * 3_000 / (STEP - longer), rel=1e-6
    )


def test_nothing_is_changed_where_recording_took_nothing_or_is_not_known() -> None:
    assert _unrecorded(case(0), without(long=True), 0.4) == 0.4
    assert _unrecorded(case(1_000), None, 0.4) == 0.4


@pytest.mark.parametrize(("unrecorded_ns", "usual"), [(5_000_000, True), (9_800_000, False)])
def test_gains_are_of_unrecorded_steps_where_recording_makes_them_longer(unrecorded_ns: int, *, usual: bool) -> None:
    """One report had "208 ms of 428 ms" beside "29 ms of 265 ms"."""
    job = Job()
    for _ in job.steps(8):
        for _ in range(4):
            with job.inside("aten::_slow_conv2d_forward"):
                job.python(2_000_000)
        with job.inside("aten::mm"):
            job.python(2_000_000)
    sampled = run(median_ns=unrecorded_ns, p90_ns=unrecorded_ns, total_ns=100 * unrecorded_ns, steps=100)
    finding = found_in(job.built, runs=[sampled])["compute.slow-convolution"]
    assert finding.gain is not None
    assert finding.gain.step_ns == pytest.approx(unrecorded_ns if usual else job.step_ns, rel=0.02)
    assert finding.evidence[0].what.startswith("in recorded steps: ") is usual
