"""compute.cast-churn: copies from one floating-point type to another fire it, by the types recorded;
other copies do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.detectors.recordings import found_in as recorded

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
