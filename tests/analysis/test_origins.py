"""Where device time comes from: compiled kernels, replayed graphs, and what nobody can tell."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import RealTraces

from whystall.analysis.trace_analysis import analyze_trace
from whystall.analysis.work_results import FusedKernel, KernelOrigins
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import BACKWARD_THREAD

TRITON = "triton_per_fused_add_native_layer_norm_3"
MATMUL = "triton_tem_fused_addmm_relu_5"


def compiled() -> TraceBuilder:
    """A compiled block: one fused kernel forward, one backward, a product that stayed an operator."""
    built = trace()
    built.python("train.py(10): main", at=0, lasts=90_000)
    built.python("nn.Module: Block_0", at=1_000, lasts=40_000)
    built.operator("Torch-Compiled Region: 0/0", at=2_000, lasts=30_000)
    built.operator("CompiledFunction", at=3_000, lasts=28_000, **{"Sequence number": 4})
    built.operator(TRITON, at=4_000, lasts=5_000)
    built.launch(TRITON, at=5_000, call="cuLaunchKernel", runs_at=100_000, lasts=7_000)
    built.operator("aten::mm", at=10_000, lasts=5_000)
    built.launch("nvjet_tst", at=11_000, runs_at=110_000, lasts=20_000)
    built.launch("hand_written", at=20_000, call="cuLaunchKernel", runs_at=131_000, lasts=300)
    linked: dict[str, Any] = {"Sequence number": 4, "Fwd thread id": 1}
    built.operator("CompiledFunctionBackward", at=50_000, lasts=20_000, thread=BACKWARD_THREAD, **linked)
    built.operator("triton_poi_fused_mystery_op_1", at=51_000, lasts=5_000, thread=BACKWARD_THREAD)
    return built.launch(
        "triton_poi_fused_mystery_op_1", at=52_000, runs_at=140_000, lasts=2_000, thread=BACKWARD_THREAD
    )


def graph(*, replays: int = 2) -> TraceBuilder:
    """Replays of a graph of three kernels from a module, and one kernel whose launch is not in the file."""
    built = trace()
    built.python("serve.py(3): step", at=0, lasts=100_000)
    built.python("nn.Module: Runner_0", at=100, lasts=99_000)
    built.python("torch/cuda/graphs.py(139): replay", at=200, lasts=98_000)
    for replay in range(replays):
        built.launch(
            "gemm", at=1_000 + 10_000 * replay, call="cudaGraphLaunch", runs_at=200_000 + 100_000 * replay, lasts=5_000
        )
        correlation = built.events[-1]["args"]["correlation"]
        for place in (1, 2):
            start = 200_000 + 100_000 * replay + 10_000 * place
            built.kernel("gelu_kernel", at=start, lasts=1_000, correlation=correlation)
    return built.kernel("from_before", at=150_000, lasts=400)


def origins(built: TraceBuilder) -> KernelOrigins:
    (found,) = analyze_trace(built.load()).origins
    return found


def fused(built: TraceBuilder) -> dict[str, FusedKernel]:
    return {row.name: row for row in origins(built).fused}


def shares(built: TraceBuilder) -> dict[str, tuple[int, int]]:
    return {share.origin: (share.events, share.device_ns) for share in origins(built).shares}


def test_every_event_has_one_origin() -> None:
    assert shares(compiled()) == {"compiled": (2, 9_000), "operator": (1, 20_000), "region": (1, 300)}
    assert shares(graph()) == {"graph": (6, 14_000), "none": (1, 400)}


def test_a_compiled_kernel_knows_its_operators_region_and_module() -> None:
    row = fused(compiled())[TRITON]
    assert (row.operators, row.category) == (["add", "native_layer_norm"], "persistent reduction")
    assert (row.region, row.modules, row.function) == ("CompiledFunction", ["Block_0"], "train.py(10): main")
    assert (row.launches, row.events, row.device_ns, row.unknown_because) == (1, 1, 7_000, None)


def test_a_backward_kernel_belongs_to_the_module_of_its_forward() -> None:
    row = fused(compiled())["triton_poi_fused_mystery_op_1"]
    assert row.modules == ["Block_0"]
    assert row.operators == []
    assert row.unknown_because is not None
    assert "mystery" in row.unknown_because


def test_a_kernel_of_a_region_without_a_name_is_said_to_be_one() -> None:
    row = fused(compiled())["hand_written"]
    assert (row.origin, row.region, row.operators) == ("region", "CompiledFunction", [])
    assert row.unknown_because is not None


def test_a_graph_has_a_caller_and_no_operators() -> None:
    row = fused(graph(replays=3))["cudaGraphLaunch"]
    assert (row.launches, row.events, row.device_ns) == (3, 9, 21_000)
    assert (row.modules, row.function, row.operators) == (["Runner_0"], "serve.py(3): step", [])
    assert row.unknown_because == "a replayed graph is one launch, which names no operators"


def test_fused_elementwise_work_is_covered_and_a_fused_product_is_not() -> None:
    built = trace(deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}])
    arguments: dict[str, Any] = {"Input Dims": [[1000], [1000]], "Input type": ["float", "float"]}
    for place, (name, lasts) in enumerate(((TRITON, 3_000), (MATMUL, 1_000))):
        built.operator(name, at=20_000 * place, lasts=9_000, **arguments)
        built.launch(name, at=20_000 * place + 1_000, runs_at=100_000 + 20_000 * place, lasts=lasts)
    analysed = analyze_trace(built.load())
    (rating,) = analysed.efficiency
    assert rating.covered_share == 0.75
    kernels = {row.name: row for row in analysed.kernels}
    assert (kernels[TRITON].flops, kernels[TRITON].bytes) == (0, 8_000)
    assert (kernels[MATMUL].flops, kernels[MATMUL].covered_share) == (None, 0.0)


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "name",
    [
        "tp-decode-b200.json.gz",
        "sglang-decode-mi300x.json.gz",
        "qwen-0.5b-prefill-h100.json.gz",
        "mtia-inference.json.gz",
    ],
)
def test_origins_add_up_to_all_events(real_traces: RealTraces, name: str) -> None:
    report = real_traces.report(name)
    for device, found in zip(report.devices, report.kernel_origins, strict=True):
        assert sum(share.events for share in found.shares) == device.gpu_events
        assert sum(share.device_ns for share in found.shares) == device.kernel_sum_ns


@pytest.mark.real_traces
def test_the_graph_of_a_real_server(real_traces: RealTraces) -> None:
    loaded = real_traces.load("sglang-decode-mi300x.json.gz")
    calls = loaded.runtime_calls.with_row_index("call").to_dicts()
    launch = next(row["call"] for row in calls if row["name"] == "hipGraphLaunch")
    own = [row for row in loaded.device_events.to_dicts() if row["launch"] == launch]
    (found,) = real_traces.report("sglang-decode-mi300x.json.gz").kernel_origins
    (row,) = found.fused
    assert (row.name, row.launches, row.events) == ("hipGraphLaunch", 1, len(own))
    assert row.device_ns == sum(event["duration_ns"] for event in own)
