"""What is told of a step is what lies in the replayed window, and not what merely begins in it."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import case_of
from tests.diagnosis.jobs import Job, together

from whystall.analysis.host_states import HostState

PART_NS: Final = 5_000_000
LONG_NS: Final = 30_000_000


def test_a_stretch_that_begins_before_the_window_counts_as_far_as_it_is_inside() -> None:
    """Of six steps the second to the fifth's ends are the window, which begins with the later rank's."""
    early, late = jobs = [Job(), Job()]
    for number in together(jobs, 6):
        early.operator("aten::mm", "gemm", PART_NS)
        early.wait()
        if number == 1:
            early.python(LONG_NS)
        else:
            early.call("Malloc", LONG_NS)
        late.call("Malloc", PART_NS)
        late.operator("aten::mm", "gemm", PART_NS)
        late.wait()
        late.call("Malloc", LONG_NS - PART_NS)
    case = case_of(early.built, late.built)
    python = case.host_state(case.ranks[0], HostState.PYTHON, HostState.NONE)
    # It began as the early rank's product had ended, and the window as that of the late one had: 5 ms later.
    assert case.steps == 3
    assert case.time_of(python) == pytest.approx((LONG_NS - PART_NS) / 3, rel=0.02)
