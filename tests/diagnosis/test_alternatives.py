"""Two repairs of one loss: a wait, and a loop of small operators that fills the idle time after it."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import Job

from whystall.diagnosis.rules.host import launch_bound

TENSORS = 300


def averaged(*, wait: bool = True, loop: int = TENSORS, layers: int = 40, waits_in_layers: bool = False) -> Job:
    """Eight steps: layers, a wait for them, and a moving average that is updated tensor by tensor."""
    job = Job()
    for _ in job.steps(8):
        begin = job.at
        for _ in range(layers):
            job.operator("aten::mm", "ampere_gemm_128x64", 400_000)
            if waits_in_layers:
                with job.inside("aten::nonzero"):
                    job.call("StreamSynchronize", job.busy_until[7] + 2_000 - job.at)
        if wait:
            with job.inside("aten::item"):
                job.call("StreamSynchronize", max(job.busy_until[7] + 2_000 - job.at, 2_000))
        since = job.at
        for _ in range(loop):
            job.operator("aten::mul_", "at::native::vectorized_elementwise_kernel<4, mul>", 2_000)
            job.operator("aten::add_", "at::native::vectorized_elementwise_kernel<4, add>", 2_000)
        job.built.python("average.py(9): update", at=since - 20, lasts=job.at - since + 20)
        job.built.python("train.py(5): step", at=begin, lasts=since - begin - 40)
    return job


def test_the_loop_after_a_wait_is_another_repair_with_its_own_gain_lines_and_remedy() -> None:
    job = averaged()
    finding = told_of(job.built)["host.sync"]
    [other] = finding.instead
    assert other.id == "host.launch-bound"
    assert finding.gain is not None
    assert 1 < other.gain.floor < other.gain.expected <= finding.gain.expected * 1.05
    assert (other.code[0].file, other.code[0].line) == ("average.py", 9)
    assert other.remedy == launch_bound.CAUSE.remedies["looped"]
    assert "host.launch-bound" not in {one.id for one in finding.rejected}


def test_without_a_wait_nothing_is_instead_of_anything() -> None:
    assert all(not finding.instead for finding in told_of(averaged(wait=False).built).values())


def test_a_rival_that_saves_little_alone_is_rejected() -> None:
    """Python fills the gap after the wait, not launches."""
    job = Job()
    for _ in job.steps(8):
        for _ in range(40):
            job.operator("aten::mm", "ampere_gemm_128x64", 400_000)
        with job.inside("aten::item"):
            job.call("StreamSynchronize", job.busy_until[7] + 2_000 - job.at)
        for _ in range(300):
            job.operator("aten::view")
    finding = told_of(job.built)["host.sync"]
    assert "host.launch-bound" not in {one.id for one in finding.instead}


@pytest.mark.parametrize("loop", [0, 20])
def test_launching_at_once_is_no_other_repair_where_waits_divide_the_launches(loop: int) -> None:
    """A graph cannot hold the waits: they must go first."""
    found = told_of(averaged(waits_in_layers=True, loop=loop).built)
    assert all(one.id != "host.launch-bound" for finding in found.values() for one in finding.instead)
