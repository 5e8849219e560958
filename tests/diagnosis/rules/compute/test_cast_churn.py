"""compute.cast-churn: copies from one floating-point type to another fire it, by the types recorded;
other copies do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.detectors.recordings import found_in as recorded
from tests.diagnosis.jobs import Job, is_worth

from whystall.testing import TraceBuilder, trace

torch = pytest.importorskip("torch")
GEMM_NS: Final = 500_000


def casts(
    source: str, target: str, *, around: str = "aten::_to_copy", lasts: int = 200_000, api: str = "cuda"
) -> TraceBuilder:
    """Ten steps of a product of 500 us and a copy, for which the host waits; 800 us in all."""
    built = trace()
    for number in range(10):
        at = number * 800_000
        built.step(number, at=at, lasts=800_000)
        built.operator("aten::mm", at=at, lasts=10_000)
        built.launch("gemm", at=at + 2_000, call_lasts=4_000, runs_at=at + 12_000, lasts=GEMM_NS)
        built.operator("aten::to", at=at + 20_000, lasts=30_000)
        built.operator(around, at=at + 22_000, lasts=25_000)
        types = [target, source, "Scalar"]
        recorded: dict[str, Any] = {"Input Dims": [[1024, 1024], [1024, 1024], []], "Input type": types}
        built.operator("aten::copy_", at=at + 24_000, lasts=20_000, **recorded)
        built.launch(
            "direct_copy_kernel_cuda",
            at=at + 28_000,
            call=f"{api}LaunchKernel",
            call_lasts=4_000,
            runs_at=at + 12_000 + GEMM_NS,
            lasts=lasts,
        )
        built.runtime(f"{api}DeviceSynchronize", at=at + 60_000, lasts=660_000)
    return built


@pytest.mark.parametrize(
    ("source", "target", "api"),
    [
        ("c10::BFloat16", "float", "cuda"),
        ("float", "c10::Half", "cuda"),
        ("float", "c10::BFloat16", "hip"),
        ("double", "float", "cuda"),
    ],
)
def test_copies_into_another_floating_type_are_worth_their_time(source: str, target: str, api: str) -> None:
    finding = found_in(casts(source, target, api=api))["compute.cast-churn"]
    assert finding.gain is not None
    assert finding.gain.floor <= 800 / 600 <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(800 / 600, rel=0.02)
    assert finding.evidence[1].value == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("source", "target", "around", "lasts"),
    [
        ("float", "float", "aten::_to_copy", 200_000),
        ("long int", "float", "aten::_to_copy", 200_000),
        ("float", "bool", "aten::_to_copy", 200_000),
        ("c10::BFloat16", "float", "aten::clone", 200_000),
        ("c10::BFloat16", "float", "aten::_to_copy", 8_000),  # one per cent
    ],
)
def test_other_and_short_copies_are_no_casts(source: str, target: str, around: str, lasts: int) -> None:
    assert "compute.cast-churn" not in found_in(casts(source, target, around=around, lasts=lasts))


def test_a_number_that_became_a_tensor_is_no_cast() -> None:
    """`torch.tensor(0.1, dtype=torch.float64)` times a tensor in single precision."""
    built = casts("double", "float")
    for event in built.events:
        if event["name"] == "aten::copy_":
            event["args"]["Input Dims"] = [[], [], []]
    assert "compute.cast-churn" not in found_in(built)


@pytest.mark.parametrize(("learns", "told"), [(True, False), (False, True)])
def test_autocasts_own_casts_count_where_nothing_learns(*, learns: bool, told: bool, tmp_path: Path) -> None:
    """In training weights stay in full precision and are cast once in each step: that is what autocast is."""
    net = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())))
    given = torch.randn(16, 1024)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(learns):
            out = net(given)
        if learns:
            optimizer.zero_grad()
            out.float().square().mean().backward()
            optimizer.step()

    assert ("compute.cast-churn" in recorded(step, tmp_path)) is told


def test_casts_that_the_model_asks_for_in_training_are_told(tmp_path: Path) -> None:
    weight = torch.randn(1024, 1024, dtype=torch.bfloat16, requires_grad=True)
    given = torch.randn(16, 1024)

    def step() -> None:
        (given @ weight.float()).square().mean().backward()
        weight.grad = None

    assert "compute.cast-churn" in recorded(step, tmp_path)


@pytest.mark.parametrize(("kind", "norms"), [("norm", True), ("plain", False), ("logged", False)])
def test_casts_around_a_norm_that_is_written_out_are_not_told_as_weights(
    kind: str, tmp_path: Path, *, norms: bool
) -> None:
    given = torch.randn(4096, 1024, dtype=torch.bfloat16)
    weight = torch.ones(1024, dtype=torch.bfloat16)

    def step() -> None:
        for _ in range(4):
            precise = given.float()
            if kind == "logged":
                precise.mean()
                continue
            if kind == "norm":
                precise = precise * torch.rsqrt(precise.pow(2).mean(-1, keepdim=True) + 1e-6)
            weight * precise.to(torch.bfloat16)

    with torch.no_grad():
        remedy = recorded(step, tmp_path)["compute.cast-churn"].remedy
    assert remedy is not None
    assert ("rms_norm" in remedy.text) is norms


LAYERS: Final = 40
PRODUCT_NS: Final = 200_000


def decoding(
    name: str = "triton_poi_fused__to_copy_t_2",
    *,
    ratio: float = 1.5,
    product: str = "gemv2T_kernel_val",
    learns: bool = False,
) -> Job:
    """Eight steps of layers, each a kernel and the product behind it."""
    job = Job()
    for number in job.steps(8):
        for _ in range(LAYERS):
            job.launch(name, round(ratio * PRODUCT_NS))
            job.launch(product, PRODUCT_NS)
            job.launch("triton_poi_fused_mul_3", 2_000)
        if learns:
            mark: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 0}
            job.operator("aten::mm", "gemm", PRODUCT_NS, **mark)
            mark["Fwd thread id"] = 1
            with (
                job.inside("autograd::engine::evaluate_function: MmBackward0", **mark),
                job.inside("MmBackward0", **mark),
            ):
                job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("ratio", "left"),
    [(1.5, 0.5), (1.25, 0.25), (3.0, 1.0)],  # 8 and 4 bits are stored, or 32
)
def test_weights_that_are_converted_before_each_product_are_read_as_they_are_stored(ratio: float, left: float) -> None:
    job = decoding(ratio=ratio)
    finding = found_in(job.built)["compute.cast-churn"]
    saved = LAYERS * (ratio + 1 - left) * PRODUCT_NS
    is_worth(finding, job.step_ns / (job.step_ns - saved - LAYERS * 1_000))
    assert finding.remedy is not None
    assert "as they are stored" in finding.remedy.text


@pytest.mark.parametrize(
    ("source", "fires"), [("signed char", True), ("c10::Float8_e4m3fn", True), ("c10::Half", False)]
)
def test_an_eager_job_shows_the_stored_type(source: str, *, fires: bool) -> None:
    """A cast of scores before a product is no cast of weights."""
    job = Job()
    for _ in job.steps(8):
        for _ in range(LAYERS):
            with job.inside("aten::_to_copy"):
                types: dict[str, Any] = {
                    "Input Dims": [[4096, 4096], [4096, 4096]],
                    "Input type": ["c10::BFloat16", source],
                }
                job.operator("aten::copy_", "unrolled_elementwise_kernel", 300_000, **types)
            job.operator("aten::mm", "gemv2T_kernel_val", PRODUCT_NS)
        job.wait()
    found = found_in(job.built).get("compute.cast-churn")
    assert (found is not None and "before each product" in found.title) is fires


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(decoding(ratio=0.05), id="activations"),
        pytest.param(decoding("triton_poi_fused__to_copy_add_rsqrt_2"), id="other work in it"),
        pytest.param(decoding("triton_red_fused__to_copy_t_2"), id="sums"),
        pytest.param(decoding("triton_poi_fused_mul_2"), id="no conversion"),
        pytest.param(decoding(product="void flash_fwd_kernel<Flash_fwd_kernel_traits>"), id="no product"),
        pytest.param(decoding(learns=True), id="weights that learn"),
    ],
)
def test_others_convert_no_weights(job: Job) -> None:
    assert "compute.cast-churn" not in found_in(job.built)
