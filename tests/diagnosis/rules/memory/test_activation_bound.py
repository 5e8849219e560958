"""memory.activation-bound: a peak that is mostly what forward passes keep for backward passes is told, with bytes."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import Job

from whystall.testing.builder import BACKWARD_THREAD, MAIN_THREAD

UNIT: Final = 128 << 20  # sizes below are in units of 128 MiB
LAYERS: Final = 4


class Memory:
    """An allocator that tells what it does, of a job."""

    def __init__(self, job: Job, before: int) -> None:
        self.job, self.total, self.address = job, before * UNIT, 0

    def alloc(self, size: int, thread: int = MAIN_THREAD) -> tuple[int, int]:
        self.address += 1 << 20
        self._event(self.address, size, thread)
        return self.address, size

    def free(self, held: tuple[int, int], thread: int = MAIN_THREAD) -> None:
        self._event(held[0], -held[1], thread)

    def _event(self, address: int, size: int, thread: int) -> None:
        self.total += size * UNIT
        self.job.built.memory(
            at=self.job.at,
            size=size * UNIT,
            allocated=self.total,
            reserved=(self.total + 1) * UNIT,
            address=address,
            thread=thread,
        )
        self.job.at += 100


def training(kept: int, before: int, *, trains: bool = True, starts: int = 0) -> Job:
    """Twelve steps of four layers, each of which keeps so much; what was there ``before`` are weights and state."""
    job = Job()
    job.at = starts
    memory = Memory(job, before)
    for _ in job.steps(12):
        held = []
        for _ in range(LAYERS):
            with job.inside("aten::linear"):
                held.append(memory.alloc(kept))
                job.launch("gemm", 300_000)
        for one in reversed(held):
            if not trains:
                memory.free(one)
                continue
            with job.inside("autograd::engine::evaluate_function: AddmmBackward0", thread=BACKWARD_THREAD):
                job.operator("aten::mm", "gemm", 600_000, thread=BACKWARD_THREAD)
                memory.free(one, BACKWARD_THREAD)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("kept", "before", "share"),
    [
        (4, 4, 0.8),  # 2 GiB of 2.5 GiB
        (2, 2, 0.8),  # 1 GiB of 1.25 GiB
        (4, 24, 0.4),
        (4, 25, None),  # parameters and the optimizer's state are most of it
        (4, 100, None),
        (1, 3, None),  # less than 1 GiB: nobody is short
    ],
)
def test_activations_that_are_most_of_the_peak_are_told_with_their_bytes(
    kept: int, before: int, share: float | None
) -> None:
    built = training(kept, before).built
    finding = told_of(built).get("memory.activation-bound")

    assert (finding is not None) is (share is not None)
    assert "memory.activation-bound" not in found_in(built)  # it costs memory, and no time
    if finding is not None:
        assert (finding.severity, finding.gain) == ("info", None)
        bytes_ = [one.value for one in finding.evidence if one.unit == "bytes"]
        assert bytes_ == [(LAYERS * kept + before) * UNIT, LAYERS * kept * UNIT, LAYERS * kept * UNIT]
        assert next(one.value for one in finding.evidence if one.unit == "share") == share
        assert "aten::linear" in finding.evidence[-1].what


def test_what_inference_holds_is_no_activation() -> None:
    assert "memory.activation-bound" not in told_of(training(4, 4, trains=False).built)


def test_a_later_start_changes_nothing() -> None:
    plain, later = (told_of(training(4, 4, starts=at).built)["memory.activation-bound"] for at in (0, 7_000_000_000))
    assert later.evidence == plain.evidence


def test_activations_that_are_freed_again_are_no_growth() -> None:
    job = Job()
    for _ in job.steps(12):
        for place in range(4):
            job.launch("gemm", 500_000)
            job.built.memory(at=job.at, size=1 << 30, allocated=(1 + place) << 30, reserved=5 << 30)
        job.built.memory(at=job.at + 1_000, size=-(3 << 30), allocated=1 << 30, reserved=5 << 30)
        job.wait()
    assert found_in(job.built) == {}
