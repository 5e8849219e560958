"""compute.training-mode: dropout that draws where nothing is trained, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.cases import found_in as found_in_built
from tests.diagnosis.detectors.recordings import found_in, told_in
from tests.diagnosis.jobs import Job, is_worth

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
ID = "compute.training-mode"


def told(found: dict[str, Finding]) -> Finding | None:
    return found.get(ID)


def model(*, attends: bool = False) -> Any:
    torch.manual_seed(0)
    if attends:
        return torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Dropout(0.2))]
    return torch.nn.Sequential(*layers)


def answers(net: Any, *shape: int, kept: bool = False) -> Callable[[], object]:
    def step() -> object:
        with torch.set_grad_enabled(kept):
            return net(torch.randn(*shape))

    return step


def test_a_model_that_was_not_put_in_evaluation_mode_is_told(tmp_path: Path) -> None:
    finding = told_in(answers(model(), 512, 128), tmp_path, told, worth=1.3)
    assert finding.remedy is not None
    assert "eval()" in (finding.remedy.patch or "")


def test_attention_that_is_written_out_for_its_sake_goes_with_it(tmp_path: Path) -> None:
    finding = told_in(answers(model(attends=True), 8, 96, 64), tmp_path, told, worth=1.3)
    assert finding.gain is not None
    assert finding.gain.floor < finding.gain.expected < finding.gain.ceiling


def trained(net: Any) -> Callable[[], object]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> object:
        loss = net(torch.randn(512, 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        return optimizer.step()

    return step


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(answers(model().eval(), 512, 128), id="evaluation mode"),
        pytest.param(trained(model()), id="training"),
        pytest.param(answers(model(), 512, 128, kept=True), id="the forward pass of a training step alone"),
    ],
)
def test_others_are_not(step: Callable[[], object], tmp_path: Path) -> None:
    assert told(found_in(step, tmp_path)) is None


def normalising(
    *, training: str = "True", running: bool = True, around: str = "", after: str = "", api: str = "cuda"
) -> Job:
    """Six steps of two convolutions of 300 us, each followed by batch normalisation of 300 us."""
    job = Job(api=api)
    statistics = [64] if running else []
    given: dict[str, Any] = {
        "Input Dims": [[32, 64, 56, 56], [64], [64], statistics, statistics, [], [], [], []],
        "Input type": ["float"] * 9,
        "Concrete Inputs": ["", "", "", "", "", training, "0.1", "1e-05", "True"],
    }
    for _ in job.steps(6):
        for _ in range(2):
            job.operator("aten::cudnn_convolution", "sm80_xmma_fprop_implicit_gemm_f16f16_cudnn", 300_000)
            begin = job.at
            job.operator("aten::batch_norm", "bn_fw_tr_1C11_kernel_NCHW", 300_000, **given)
            if around:
                job.built.operator(around, at=begin - 500, lasts=job.at - begin + 1_000)
        if after:
            job.operator(after, "nll_loss_forward_reduce", 5_000)
        job.wait()
    return job


def test_statistics_of_each_batch_are_told_where_nothing_learns() -> None:
    job = normalising()
    finding = found_in_built(job.built)[ID]
    is_worth(finding, job.step_ns / (job.step_ns - 2 * 300_000 / 3))
    assert "eval()" in ((finding.remedy and finding.remedy.patch) or "")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(normalising(training="False"), id="learned statistics"),
        pytest.param(normalising(running=False), id="none were kept"),
        pytest.param(normalising(around="aten::instance_norm"), id="instances"),
        pytest.param(normalising(after="aten::nll_loss_forward"), id="a loss: the forward pass of a training step"),
    ],
)
def test_other_normalisation_is_not(job: Job) -> None:
    assert ID not in found_in_built(job.built)
