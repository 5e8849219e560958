"""Chains of kernels that could be one: bytes and times by hand, a brute-force search as oracle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.analysis.trace_analysis import analyze_trace
from whystall.analysis.work_results import FusibleChain, KernelChains
from whystall.testing import TraceBuilder, trace

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000}
N = 1000  # elements, of four bytes each
ELEMENTWISE = "vectorized_elementwise_kernel"
Call = tuple[str, str, int, list[list[int]] | None]


def recorded(*calls: Call, device: dict[str, object] | None = None, stream: int = 7) -> TraceBuilder:
    """One kernel per call, 2 us between each: operator, kernel, duration, shapes."""
    built = trace(deviceProperties=[device or A100])
    runs_at = 1_000_000
    for place, (operator, kernel, lasts, dims) in enumerate(calls):
        shapes: dict[str, Any] = {}
        if dims is not None:
            shapes = {"Input Dims": dims, "Input type": ["float"] * len(dims)}
        built.operator(operator, at=10_000 * place, lasts=9_000, **shapes)
        built.launch(kernel, at=10_000 * place + 1_000, runs_at=runs_at, lasts=lasts, stream=stream)
        runs_at += lasts + 2_000
    return built


def chains(built: TraceBuilder) -> KernelChains:
    (found,) = analyze_trace(built.load()).chains
    return found


def only(built: TraceBuilder) -> FusibleChain:
    (chain,) = chains(built).fusible
    return chain


MUL: Call = ("aten::mul", ELEMENTWISE, 30_000, [[N], [N]])
RELU: Call = ("aten::relu", ELEMENTWISE, 20_000, [[N]])
MM: Call = ("aten::mm", "nvjet", 50_000, [[N, N], [N, N]])


def test_what_fusing_spares() -> None:
    chain = only(recorded(MUL, RELU))
    assert (chain.operators, chain.kernels, chain.calls, chain.count) == (["aten::mul", "aten::relu"], 2, 2, 1)
    assert (chain.total_ns, chain.gap_ns) == (50_000, 2_000)
    assert chain.bytes == 4 * N * (3 + 2)  # two tensors read and one written, then one and one
    assert chain.fused_bytes == 4 * N * 3  # the two inputs and the result
    assert chain.fused_bytes_keeping == 4 * N * 4  # and the product too
    assert chain.start_ns == 1_000_000


@pytest.mark.parametrize(("stream", "runs_at", "joined"), [(8, 1_200_000, False), (8, 1_700_000, True)])
def test_kernels_between_which_another_stream_computes_are_no_chain(stream: int, runs_at: int, *, joined: bool) -> None:
    built = trace(deviceProperties=[A100])
    shapes: dict[str, Any] = {"Input Dims": [[N], [N]]}
    for place, at in enumerate((1_000_000, 1_500_000)):
        built.operator("aten::mul", at=10_000 * place, lasts=9_000, **shapes)
        built.launch(ELEMENTWISE, at=10_000 * place + 1_000, runs_at=at, lasts=30_000, stream=7)
    built.operator("aten::mm", at=30_000, lasts=9_000)
    built.launch("nvjet", at=31_000, runs_at=runs_at, lasts=50_000, stream=stream)
    assert bool(chains(built).fusible) is joined


def test_a_fused_kernels_time_is_its_bytes_at_85_percent_of_the_bandwidth() -> None:
    size = 10**8
    big = [("aten::mul", ELEMENTWISE, 900_000, [[size], [size]]), ("aten::relu", ELEMENTWISE, 600_000, [[size]])]
    chain = only(recorded(*big))
    assert chain.fused_ns == pytest.approx(3 * 4 * size / (0.85 * 2039e9) * 1e9, abs=1)
    assert chain.fused_ns_keeping == pytest.approx(4 * 4 * size / (0.85 * 2039e9) * 1e9, abs=1)


def test_a_fused_kernel_takes_no_less_than_the_shortest_of_the_chain() -> None:
    assert only(recorded(MUL, RELU)).fused_ns == 20_000


def test_runs_of_the_same_operators_and_shapes_are_one_row() -> None:
    found = chains(recorded(MUL, RELU, MM, MUL, RELU, MM, MUL, ("aten::relu", ELEMENTWISE, 9_000, [[N]])))
    (chain,) = found.fusible
    assert (chain.count, chain.total_ns, chain.bytes) == (3, 139_000, 3 * 4 * N * 5)
    assert (found.fusible_count, found.fusible_ns) == (3, 139_000)


def test_other_shapes_are_another_row() -> None:
    small: list[Call] = [("aten::mul", ELEMENTWISE, 3_000, [[8], [8]]), ("aten::relu", ELEMENTWISE, 2_000, [[8]])]
    assert [chain.bytes for chain in chains(recorded(MUL, RELU, MM, *small)).fusible] == [4 * N * 5, 4 * 8 * 5]


@pytest.mark.parametrize(
    "between",
    [
        MM,
        ("aten::relu", ELEMENTWISE, 20_000, [[N + 1]]),  # reads what the first did not write
        ("aten::sort", "radixSortKVInPlace", 20_000, [[N]]),
        ("aten::_foreach_mul_", "multi_tensor_apply_kernel", 20_000, [[N]]),
    ],
    ids=lambda call: call[0],
)
def test_what_breaks_a_chain(between: Call) -> None:
    assert chains(recorded(MUL, between)).fusible == []


def test_a_normalisation_takes_over_what_was_added() -> None:
    built = recorded(("aten::add", ELEMENTWISE, 8_000, [[4, 250], [4, 250]]))
    arguments: dict[str, Any] = {
        "Input Dims": [[4, 250], [], [250], [250], []],
        "Input type": ["float", "ScalarList", "float", "float", "Scalar"],
        "Concrete Inputs": ["", "[250]", "", "", "1e-05"],
    }
    built.operator("aten::native_layer_norm", at=20_000, lasts=9_000, **arguments)
    chain = only(built.launch("vectorized_layer_norm_kernel", at=21_000, runs_at=1_010_000, lasts=9_000))
    assert chain.operators == ["aten::add", "aten::native_layer_norm"]
    assert chain.bytes is not None
    assert chain.fused_bytes == chain.bytes - 2 * 4 * N


def test_without_shapes_the_chain_has_no_bytes_and_says_why() -> None:
    chain = only(recorded(("aten::mul", ELEMENTWISE, 5_000, None), ("aten::relu", ELEMENTWISE, 5_000, None)))
    assert (chain.bytes, chain.fused_bytes, chain.fused_ns) == (None, None, None)
    assert chain.unknown_because is not None
    assert "shapes" in chain.unknown_because


def test_without_a_bandwidth_there_are_bytes_and_no_time() -> None:
    chain = only(recorded(MUL, RELU, device={"id": 0, "name": "Some Accelerator 9000"}))
    assert (chain.fused_bytes, chain.fused_ns) == (4 * N * 3, None)
    assert chain.unknown_because == "the device's memory bandwidth is not known"


def test_streams_are_apart() -> None:
    built = recorded(MUL)
    arguments: dict[str, Any] = {"Input Dims": [[N]], "Input type": ["float"]}
    built.operator("aten::relu", at=20_000, lasts=9_000, **arguments)
    built.launch(ELEMENTWISE, at=21_000, runs_at=1_040_000, lasts=5_000, stream=8)
    assert chains(built).fusible == []


def test_runs_of_short_kernels() -> None:
    short: list[Call] = [("aten::relu", ELEMENTWISE, 3_000, [[N]])] * 9
    found = chains(recorded(*short, MM, *short[:7])).short  # seven in a row are no chain
    assert (found.count, found.kernels, found.longest) == (1, 9, 9)
    assert (found.busy_ns, found.gap_ns) == (27_000, 16_000)


steps = st.lists(st.sampled_from([MUL, RELU, MM, ("aten::relu", ELEMENTWISE, 5_000, [[8]])]), max_size=14)


@settings(max_examples=40)
@given(steps)
def test_chains_are_those_that_a_plain_walk_finds(calls: list[Call]) -> None:
    runs: list[list[Call]] = [[]]
    for call in calls:
        if call is MM:
            runs.append([])
        elif runs[-1] and call[3] is not None and runs[-1][-1][3] is not None and call[3][0] != runs[-1][-1][3][0]:
            runs.append([call])
        else:
            runs[-1].append(call)
    expected = [run for run in runs if len(run) >= 2]
    analysed = analyze_trace(recorded(*calls).load()).chains
    found = analysed[0].fusible if analysed else []
    assert sum(chain.count for chain in found) == len(expected)
    assert sum(chain.count * chain.kernels for chain in found) == sum(len(run) for run in expected)
    assert sum(chain.total_ns for chain in found) == sum(call[2] for run in expected for call in run)
    assert {(*chain.operators, str(chain.bytes)) for chain in found} == {
        (*(call[0] for call in run), str(sum(_bytes(call) for call in run) * expected.count(run))) for run in expected
    }


def _bytes(call: Call) -> int:
    sizes = call[3] or []
    return 4 * (sum(dims[0] for dims in sizes) + sizes[0][0])
