"""episodic.evaluation: evaluation between training steps fires it, by any framework's names;
training and input do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, found_in_runs, line, run
from tests.diagnosis.jobs import Job, is_worth

PRODUCT_NS: Final = 2_000_000
BATCHES: Final = 6
EVERY: Final = 6


def training(name: str, *, batches: int = BATCHES, frame: bool = True, api: str = "cuda") -> Job:
    """Twenty-six steps of a product; in every sixth there are six forward passes before it, under a name."""
    job = Job(api=api)
    for number in job.steps(26):
        if number % EVERY == 1:
            begin = job.at
            for _ in range(batches):
                job.operator("aten::mm", "gemm", PRODUCT_NS)
            job.wait()
            mark = job.built.python if frame else job.built.annotation
            mark(name, at=begin, lasts=job.at - begin)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("name", "frame", "api"),
    [
        ("evaluation", False, "cuda"),
        ("evaluate", False, "hip"),
        ("train.py(90): validate", True, "cuda"),
        ("train.py(90): evaluate_model", True, "cuda"),
        ("transformers/trainer.py(4046): evaluate", True, "cuda"),
        ("torchtitan/components/validate.py(210): validate", True, "cuda"),
        ("[pl][profile][Strategy]SingleDeviceStrategy.validation_step", False, "cuda"),
        ("[pl][profile][LightningModule]GPT.validation_step", False, "cuda"),
    ],
)
def test_evaluating_every_sixth_step_is_worth_its_share(name: str, frame: bool, api: str) -> None:
    finding = found_in(training(name, frame=frame, api=api).built)["episodic.evaluation"]
    # Six batches in every sixth step: as much again as training.
    is_worth(finding, 2.0, within=0.1)


@pytest.mark.parametrize(
    "name",
    [
        "train.py(31): training_step",
        "train.py(31): retrieval",
        "transformers/trainer.py(3579): training_step",
        "torch/nn/modules/module.py(1741): _wrapped_call_impl",
        "data.py(12): invalidate",
    ],
)
def test_training_and_other_words_with_the_same_letters_are_none(name: str) -> None:
    assert "episodic.evaluation" not in found_in(training(name).built)


def test_one_batch_now_and_then_hardly_counts() -> None:
    job = Job()
    for number in job.steps(26):
        if number == 12:
            with job.marked("evaluate"):
                job.operator("aten::mm", "gemm", PRODUCT_NS // 10)
                job.wait()
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    assert "episodic.evaluation" not in found_in(job.built)


@pytest.mark.parametrize(
    ("share", "part", "fires"), [(0.2, "evaluation", True), (0.015, "evaluation", False), (0.2, "forward", False)]
)
def test_looks_that_found_a_function_of_evaluation(share: float, part: str, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"other": 0.22}, places=[line(share, part=part)]))
    assert list(found) == (["episodic.evaluation"] if fires else [])
    if fires:
        is_worth(found["episodic.evaluation"], 1 / (1 - share), within=0.1)


@pytest.mark.parametrize("name", ["transformers/trainer.py(4300): evaluation_loop", "eval.py(12): evaluate"])
def test_a_job_that_evaluates_and_does_nothing_else_interrupts_no_training(name: str) -> None:
    job = Job()
    for number in job.steps(8):
        job.python(50_000)
        begin = job.at
        for _ in range(1 + number % 3):
            job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
        job.built.python(name, at=begin, lasts=job.at - begin)
    assert "episodic.evaluation" not in found_in(job.built)
