"""Work per module, kernel and family: arithmetic by hand, and a brute-force walk over real traces."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import RealTraces

from whystall.analysis.results import KernelFamily, Module
from whystall.analysis.trace_analysis import TraceAnalysis, analyze_trace
from whystall.cost import recorded_cost
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import BACKWARD_THREAD

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000}
FORWARD_FLOPS = 2 * 64 * 128 * 256  # (64 x 128) by (128 x 256)
RELU_BYTES = 2 * 64 * 256 * 2  # read and written, two bytes an element


def shapes(*dims: list[int]) -> dict[str, Any]:
    return {"Input Dims": list(dims), "Input type": ["c10::BFloat16"] * len(dims)}


def training(*, with_shapes: bool = True) -> TraceBuilder:
    """A block of a linear layer and a relu, forward and backward.

    Each product runs for 2 us and one helper for 1 us.
    """

    def sizes(*dims: list[int]) -> dict[str, Any]:
        return shapes(*dims) if with_shapes else {}

    built = trace(deviceProperties=[A100])
    built.python("nn.Module: Block_0", at=0, lasts=50_000)
    built.python("nn.Module: Linear_0", at=1_000, lasts=20_000)
    built.operator("aten::mm", at=2_000, lasts=15_000, **{"Sequence number": 7}, **sizes([64, 128], [128, 256]))
    built.launch("nvjet_tst", at=3_000, runs_at=100_000, lasts=2_000)
    built.launch("splitKreduce_kernel", at=6_000, runs_at=102_000, lasts=500)
    built.operator("aten::relu", at=30_000, lasts=9_000, **sizes([64, 256]))
    built.launch("vectorized_elementwise_kernel", at=31_000, runs_at=103_000, lasts=1_000)
    linked: dict[str, Any] = {"Sequence number": 7, "Fwd thread id": 1}
    built.operator("MmBackward0", at=60_000, lasts=40_000, thread=BACKWARD_THREAD, **linked)
    for at, dims in ((61_000, ([128, 64], [64, 256])), (71_000, ([64, 256], [256, 128]))):
        built.operator("aten::mm", at=at, lasts=9_000, thread=BACKWARD_THREAD, **sizes(*dims))
        built.launch("nvjet_tst", at=at + 1_000, runs_at=at + 60_000, lasts=2_000, thread=BACKWARD_THREAD)
    return built


def analysed(**options: bool) -> TraceAnalysis:
    return analyze_trace(training(**options).load())


def module(path: str, **options: bool) -> Module:
    return next(row for row in analysed(**options).modules if row.path == path)


def family(name: str) -> KernelFamily:
    return next(row for row in analysed().kernel_families if row.family == name)


def test_calls_with_damaged_sizes_are_not_counted() -> None:
    built = trace(deviceProperties=[A100])
    for at in (1_000, 21_000, 41_000):
        built.operator("aten::relu", at=at, lasts=15_000, **shapes([2**60, 2**60]))
        built.launch("vectorized_elementwise_kernel", at=at + 1_000, runs_at=at + 100_000, lasts=20_000)
    analysis = analyze_trace(built.load())
    assert [(row.count, row.bytes) for row in analysis.kernel_families] == [(3, None)]
    assert analysis.chains[0].fusible[0].unknown_because


@pytest.mark.parametrize(
    ("name", "outer", "inner", "elements"),
    [
        # A nested tensor: torch records no sizes of it, only of the values within.
        (
            "aten::add",
            shapes([], [1, 256]) | {"Input type": ["", "c10::BFloat16"]},
            shapes([1024, 64, 256], [256]),
            2 * 1024 * 64 * 256 + 256,
        ),
        # A distributed tensor: the outer call has the whole, the inner one this rank's piece.
        ("aten::mm", shapes([64, 128], [128, 1024]), shapes([64, 128], [128, 256]), 64 * 128 + 128 * 256 + 64 * 256),
    ],
)
def test_of_a_call_that_hands_on_to_its_like_the_inner_one_counts(
    name: str, outer: dict[str, Any], inner: dict[str, Any], elements: int
) -> None:
    built = trace(deviceProperties=[A100])
    built.operator(name, at=1_000, lasts=15_000, **outer)
    built.operator(name, at=3_000, lasts=10_000, **inner)
    built.launch("some_kernel", at=4_000, runs_at=100_000, lasts=20_000)
    (row,) = analyze_trace(built.load()).kernel_families
    assert row.bytes == 2 * elements


def test_a_modules_flops_forward_and_backward() -> None:
    linear = module("Block_0/Linear_0")
    assert (linear.forward_flops, linear.backward_flops) == (FORWARD_FLOPS, 2 * FORWARD_FLOPS)
    assert linear.forward_flops_per_s == pytest.approx(FORWARD_FLOPS / 2.5e-6)
    assert linear.backward_flops_per_s == pytest.approx(2 * FORWARD_FLOPS / 4e-6)
    assert linear.covered_share == 1.0


def test_a_parent_holds_its_children() -> None:
    block, linear = module("Block_0"), module("Block_0/Linear_0")
    assert block.forward_flops == linear.forward_flops  # a relu has no FLOPs of products
    assert linear.forward_bytes == 2 * (64 * 128 + 128 * 256 + 64 * 256)
    assert block.forward_bytes == linear.forward_bytes + RELU_BYTES
    assert block.forward_bytes_per_s == pytest.approx(block.forward_bytes / 3.5e-6)


def test_a_modules_place_under_the_roofline() -> None:
    moved = 2 * (64 * 128 + 128 * 256 + 64 * 256)  # the same three matrices in every product
    least = 3 * max(moved / 2039e9, FORWARD_FLOPS / 312e12)
    assert module("Block_0/Linear_0").roofline == pytest.approx(least / 6.5e-6)


def test_work_of_a_call_goes_to_its_main_kernel() -> None:
    kernels = {row.name: row for row in analysed().kernels}
    assert kernels["nvjet_tst"].flops == 3 * FORWARD_FLOPS
    assert kernels["splitKreduce_kernel"].flops is None
    assert kernels["splitKreduce_kernel"].covered_share == 1.0
    assert kernels["nvjet_tst"].flops_per_s == pytest.approx(3 * FORWARD_FLOPS / 6e-6)


def test_a_short_product_beside_a_long_helper_still_has_the_flops() -> None:
    built = trace(deviceProperties=[A100]).operator("aten::mm", at=0, lasts=9_000, **shapes([64, 128], [128, 256]))
    built.launch("nchwToNhwcKernel", at=1_000, runs_at=20_000, lasts=9_000)
    built.launch("nvjet_tst", at=3_000, runs_at=30_000, lasts=1_000)
    rows = {row.family: row.flops for row in analyze_trace(built.load()).kernel_families}
    assert rows == {"layout": None, "gemm": FORWARD_FLOPS}


def test_families_have_flops_bytes_and_rates() -> None:
    gemm, elementwise = family("gemm"), family("elementwise")
    assert gemm.flops == 3 * FORWARD_FLOPS
    assert gemm.flops_per_s == pytest.approx(3 * FORWARD_FLOPS / 6.5e-6)
    assert (elementwise.flops, elementwise.flops_per_s) == (0, None)
    assert elementwise.bytes == RELU_BYTES
    assert elementwise.bytes_per_s == pytest.approx(RELU_BYTES / 1e-6)
    assert elementwise.roofline == pytest.approx(RELU_BYTES / 2039e9 / 1e-6)


def test_without_shapes_no_work_is_claimed() -> None:
    linear = module("Block_0/Linear_0", with_shapes=False)
    assert (linear.forward_flops, linear.forward_bytes, linear.covered_share) == (None, None, None)
    assert all(row.flops is None and row.covered_share is None for row in analysed(with_shapes=False).kernels)


def test_a_modules_rate_needs_nearly_all_of_its_time_to_be_of_known_work() -> None:
    built = training()
    built.operator("my::secret", at=40_000, lasts=5_000)
    built.launch("nvjet_secret", at=41_000, runs_at=200_000, lasts=2_000)
    found = analyze_trace(built.load())
    gemm = next(row for row in found.kernel_families if row.family == "gemm")
    assert gemm.flops == 3 * FORWARD_FLOPS
    assert gemm.flops_per_s == pytest.approx(3 * FORWARD_FLOPS / 6.5e-6)  # of the kernels whose work is known
    assert gemm.covered_share == pytest.approx(6.5 / 8.5)
    block = next(row for row in found.modules if row.path == "Block_0")
    assert (block.forward_flops, block.forward_flops_per_s) == (FORWARD_FLOPS, None)


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "name", ["bert-small-h100.json.gz", "qwen-0.5b-prefill-h100.json.gz", "tp-decode-b200.json.gz"]
)
def test_families_and_modules_sum_to_a_walk_over_the_calls(real_traces: RealTraces, name: str) -> None:
    """The oracle costs every call, takes the outermost of those that have a cost, and looks where it ran."""
    loaded = real_traces.load(name)
    operators = loaded.operators.to_dicts()
    frames = loaded.python_functions.to_dicts()
    launching = {row["operator"] for row in loaded.device_events.to_dicts()}
    ancestors: dict[int, list[int]] = {}
    costs: dict[int, int] = {}
    for row, call in enumerate(operators):
        above = [] if call["parent"] is None else [*ancestors[call["parent"]], call["parent"]]
        ancestors[row] = above
        cost = recorded_cost(
            call["name"], call["input_dims"], call["input_types"], call["concrete_inputs"], call["input_strides"]
        )
        counts = cost is not None and cost.kind not in {"view", "composite", "other", "communication"}
        if cost is not None and counts and not any(one in costs for one in above):
            costs[row] = cost.model_flops
    reached = {one for row in launching if row is not None for one in [row, *ancestors[row]]}
    in_modules = sum(
        flops
        for row, flops in costs.items()
        if operators[row]["frame"] is not None and frames[operators[row]["frame"]]["module"] is not None
    )
    report = real_traces.report(name)
    roots = [module for module in report.modules if "/" not in module.path]
    assert sum(row.flops or 0 for row in report.kernel_families) == sum(costs[row] for row in costs.keys() & reached)
    assert sum(row.flops or 0 for row in report.kernels) == sum(row.flops or 0 for row in report.kernel_families)
    assert sum((row.forward_flops or 0) + (row.backward_flops or 0) for row in roots) == in_modules
    assert in_modules > 0
