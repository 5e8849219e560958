"""FLOPs, rates and utilisation in trace reports: against exact counts of real traces and arithmetic by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import RealTraces

from whystall.analysis.results import Operator
from whystall.analysis.trace_analysis import analyze_trace
from whystall.analysis.work_results import DeviceEfficiency
from whystall.testing import TraceBuilder, trace

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000}


def matmul(
    size: int,
    *,
    lasts: int,
    device: dict[str, object] | None = None,
    dtype: str = "c10::BFloat16",
    kernel: str = "nvjet",
) -> TraceBuilder:
    """One square matrix product of ``size`` whose kernel is all that the device runs."""
    dims = [[size, size], [size, size]]
    built = trace(deviceProperties=[device or A100])
    built.operator("aten::linear", at=0, lasts=9_000)
    arguments: dict[str, Any] = {"Input Dims": dims, "Input type": [dtype, dtype]}
    built.operator("aten::mm", at=1_000, lasts=7_000, **arguments)
    return built.launch(f"{kernel}_tst_bf16", at=2_000, runs_at=20_000, lasts=lasts)


def rating(built: TraceBuilder) -> DeviceEfficiency:
    (found,) = analyze_trace(built.load()).efficiency
    return found


def operator(built: TraceBuilder, name: str) -> Operator:
    return next(row for row in analyze_trace(built.load()).operators if row.name == name)


def test_hundred_teraflops_on_an_a100_are_32_05_percent() -> None:
    flops = 2 * 1000**3
    lasts = flops * 10**9 // (100 * 10**12)  # at 100 TFLOP/s
    found = rating(matmul(1000, lasts=lasts))
    assert found.mfu == pytest.approx(0.3205, abs=5e-5)
    assert found.hfu == found.mfu
    assert found.covered_share == 1.0
    assert found.peak == "A100 SXM 80GB"


@pytest.mark.parametrize(
    "name",
    ["record_param_comms", "c10d::allreduce_", "_c10d_functional::all_reduce", "nccl:all_reduce", "gloo:broadcast"],
)
@pytest.mark.parametrize("kernel", ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", "reduce_before_sending"])
def test_communication_is_no_operator_without_a_formula(name: str, kernel: str) -> None:
    built = matmul(1000, lasts=20_000)
    built.operator(name, at=30_000, lasts=9_000)
    built.launch(kernel, at=31_000, runs_at=90_000, lasts=70_000)
    built.kernel("ncclDevKernel_Broadcast", at=200_000, lasts=500)
    built.operator("my::secret", at=50_000, lasts=9_000)
    built.launch("secret_kernel", at=51_000, runs_at=300_000, lasts=7_000)
    assert [row.operator for row in rating(built).uncovered] == ["my::secret"]


def test_operator_rate_and_roofline() -> None:
    row = operator(matmul(1000, lasts=20_000), "aten::mm")
    assert row.flops == 2_000_000_000
    assert row.flops_per_s == pytest.approx(100e12)
    # three matrices of two bytes an element at 2,039 GB/s, or the FLOPs at 312 TFLOP/s, whichever takes longer
    least_ns = max(3 * 1000**2 * 2 / 2039e9, 2e9 / 312e12) * 1e9
    assert row.roofline == pytest.approx(least_ns / 20_000)


def test_operator_that_contains_another_counts_once() -> None:
    built = matmul(1000, lasts=20_000)
    assert operator(built, "aten::linear").flops is None
    assert sum(work.flops for work in rating(built).by_dtype) == 2_000_000_000


def test_unknown_device_has_no_utilisation() -> None:
    found = rating(matmul(1000, lasts=20_000, device={"id": 0, "name": "Some Accelerator 9000"}))
    assert (found.mfu, found.hfu, found.peak) == (None, None, None)
    assert found.unknown_because == "no peak is known for 'Some Accelerator 9000'"


def test_dtype_without_a_peak_has_no_utilisation() -> None:
    volta = {"id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 34_000_000_000}
    found = rating(matmul(1000, lasts=20_000, device=volta))  # no bf16 on Volta
    assert found.mfu is None
    assert found.unknown_because == "the table of accelerators has no peak for a dtype that was used"


def test_single_precision_is_rated_by_the_unit_that_ran_it() -> None:
    plain = rating(matmul(1000, lasts=20_000, dtype="float", kernel="ampere_sgemm"))
    tensor = rating(matmul(1000, lasts=20_000, dtype="float", kernel="sm80_xmma_gemm_tf32f32"))
    assert (plain.by_dtype[0].precision, tensor.by_dtype[0].precision) == ("fp32", "tf32")
    assert plain.tensor_core_share == 0.0
    assert tensor.tensor_core_share == 1.0


def test_without_shapes_nothing_is_guessed() -> None:
    built = trace(deviceProperties=[A100]).operator("aten::mm", at=0, lasts=9_000)
    found = rating(built.launch("nvjet", at=1_000, runs_at=5_000, lasts=1_000))
    assert found.mfu is None
    assert found.unknown_because is not None
    assert "record_shapes=True" in found.unknown_because


def test_hostile_shapes_cost_nothing_and_harm_nothing() -> None:
    most = 2**63 - 1
    arguments: dict[str, Any] = {"Input Dims": [[most, most], [most, 2]], "Input type": ["float", "float"]}
    built = trace(deviceProperties=[A100])
    built.operator("aten::mm", at=0, lasts=9_000, **arguments)
    assert rating(built.launch("nvjet", at=1_000, runs_at=5_000, lasts=1_000)).covered_share == 0.0


@pytest.mark.real_traces
@pytest.mark.parametrize(
    ("name", "operator_name", "flops", "causal"),
    [
        ("qwen-0.5b-prefill-h100.json.gz", "aten::mm", 4_164_037_902_336, 4_164_037_902_336),
        ("qwen-0.5b-prefill-h100.json.gz", "aten::addmm", 1_350_498_779_136, 1_350_498_779_136),
        (
            "qwen-0.5b-prefill-h100.json.gz",
            "aten::_scaled_dot_product_flash_attention",
            491_490_115_584,
            245_745_057_792,
        ),
        ("bert-small-h100.json.gz", "aten::addmm", 8_029_194_240, 8_029_194_240),
        ("tp-decode-b200.json.gz", "aten::addmm", 235_693_670_400, 235_693_670_400),
        ("tp-decode-b200.json.gz", "aten::mm", 144_783_360, 144_783_360),
    ],
)
def test_flops_of_real_traces(real_traces: RealTraces, name: str, operator_name: str, flops: int, causal: int) -> None:
    row = next(row for row in real_traces.report(name).operators if row.name == operator_name)
    assert (row.flops, row.flops_causal) == (flops, causal)


def test_tensor_core_share_by_time_by_family_and_by_flops() -> None:
    """A product of 2 GFLOP on tensor cores in 20 us, and one of 0.25 GFLOP on others in 30 us."""
    built = matmul(1000, lasts=20_000)
    arguments: dict[str, Any] = {"Input Dims": [[500, 500], [500, 500]], "Input type": ["float", "float"]}
    built.operator("aten::mm", at=10_000, lasts=5_000, **arguments)
    built.launch("ampere_sgemm_128x64", at=11_000, runs_at=60_000, lasts=30_000)
    built.operator("aten::relu", at=16_000, lasts=3_000, **{"Input Dims": [[500]], "Input type": ["float"]})  # type: ignore[arg-type]
    built.launch("vectorized_elementwise_kernel", at=17_000, runs_at=95_000, lasts=7_000)
    analysed = analyze_trace(built.load())
    (found,) = analysed.efficiency
    assert found.tensor_core_share == pytest.approx(20 / 50)
    assert found.tensor_core_flops_share == pytest.approx(2 / 2.25)
    families = {row.family: row.tensor_core_share for row in analysed.kernel_families}
    assert families == {"gemm": pytest.approx(20 / 50), "elementwise": None}


def test_operators_of_a_graph_that_is_captured_did_no_work() -> None:
    """Their kernels ran nowhere: a product that launched nothing is no FLOP of the device's window."""
    shapes: dict[str, Any] = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::Half", "c10::Half"]}
    built = trace(deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}])
    for number in range(100):
        at = 20_000 * number
        built.operator("aten::mm", at=at, lasts=10_000, **shapes)
        if number == 0:
            built.launch("ampere_h16816gemm", at=at + 1_000, runs_at=at + 5_000, lasts=600_000)
        else:
            built.runtime("cudaLaunchKernel", at=at + 1_000, lasts=2_000)
    rated = analyze_trace(built.load()).efficiency[0]
    assert sum(row.flops for row in rated.by_dtype) == 2 * 4096**3
    assert rated.mfu is not None
    assert rated.mfu <= 1


@pytest.mark.parametrize(("first_ns", "steps"), [(20_000, None), (10_000_000, 5)])
def test_a_step_that_compiles_is_left_out_of_mfu(first_ns: int, steps: int | None) -> None:
    """Eight steps at half of the peak; the host compiles before the kernels of the first."""
    flops = 2 * 1000**3
    lasts = round(flops / 312e12 * 1e9)
    shapes: dict[str, Any] = {"Input Dims": [[1000, 1000]] * 2, "Input type": ["c10::BFloat16"] * 2}
    built = trace(deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}])
    at = 0
    for number in range(8):
        long = first_ns if number == 0 else 2 * lasts
        built.step(number, at=at, lasts=long)
        built.operator("aten::mm", at=at + 1, lasts=1_000, **shapes)
        built.launch("nvjet_tst_bf16", at=at + 10, call_lasts=10, runs_at=at + 1_000, lasts=lasts)
        at += long
    found = rating(built)
    assert found.rated_steps == steps
    if steps is not None:
        assert found.mfu == pytest.approx(0.5, abs=0.02)
