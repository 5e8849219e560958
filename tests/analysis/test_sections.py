"""Operators, modules, phases, communication, memory, input and host threads, each with a known answer."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.analysis.communication import communication_results
from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.results import Collective, Module, Operator
from whystall.analysis.trace_analysis import TraceAnalysis, analyze_trace
from whystall.testing import TraceBuilder, trace


def analyzed(built: TraceBuilder) -> TraceAnalysis:
    return analyze_trace(built.load(), rank=3)


# --- operators ----------------------------------------------------------------------------------------


def operators(built: TraceBuilder) -> dict[str, Operator]:
    return {row.name: row for row in analyzed(built).operators}


def test_device_time_of_operators_is_that_of_what_they_launched() -> None:
    built = (
        trace()
        .operator("aten::linear", at=0, lasts=5_000)
        .operator("aten::addmm", at=100, lasts=4_000)
        .launch("gemm", at=200, runs_at=50_000, lasts=700)
        .launch("bias", at=4_500, runs_at=51_000, lasts=50, call_lasts=100)
        .kernel("nobody's", at=60_000, lasts=999)
    )
    found = operators(built)
    linear, addmm = found["aten::linear"], found["aten::addmm"]
    assert (linear.rank, linear.calls) == (3, 1)
    assert (linear.device_ns, linear.device_self_ns, linear.device_events) == (750, 50, 1)
    assert (addmm.device_ns, addmm.device_self_ns, addmm.device_events) == (700, 700, 1)
    assert (linear.host_ns, linear.host_self_ns) == (5_000, 900)
    assert (addmm.host_ns, addmm.host_self_ns) == (4_000, 3_000)


def test_recursion_counts_once() -> None:
    built = trace()
    for depth in range(5):
        built.operator("aten::to", at=100 * depth, lasts=5_000 - 200 * depth)
    built.launch("copy", at=500, runs_at=9_000, lasts=70)
    built.operator("aten::to", at=6_000, lasts=10)
    row = operators(built)["aten::to"]
    assert (row.calls, row.device_ns, row.device_self_ns, row.host_ns) == (6, 70, 70, 5_010)


def test_all_kernels_of_a_graph_belong_to_its_operator() -> None:
    built = trace().operator("graph", at=0, lasts=1_000).runtime("cudaGraphLaunch", at=10, lasts=10, correlation=5)
    for i in range(10):
        built.kernel("k", at=5_000 + 100 * i, lasts=10, correlation=5)
    assert operators(built)["graph"].device_ns == 100


# --- modules ------------------------------------------------------------------------------------------


def modules(built: TraceBuilder) -> dict[str, Module]:
    return {row.path: row for row in analyzed(built).modules}


def linear(built: TraceBuilder, at: int, sequence: int, lasts: int = 70) -> None:
    """A module's call with one operator and one kernel, ten microseconds long."""
    arguments: dict[str, Any] = {"Sequence number": sequence}
    built.python("nn.Module: Linear_0", at=at, lasts=10_000)
    built.operator("aten::linear", at=at + 1_000, lasts=5_000, **arguments)
    built.launch("gemm", at=at + 2_000, runs_at=500_000 + at, lasts=lasts)


def test_modules_called_twice_and_nested() -> None:
    built = trace().python("nn.Module: Net_0", at=0, lasts=100_000)
    linear(built, 10_000, 1)
    linear(built, 30_000, 2, lasts=30)
    built.operator("aten::add", at=60_000, lasts=5_000).launch("add", at=61_000, runs_at=600_000, lasts=5)
    found = modules(built)
    assert list(found) == ["Net_0", "Net_0/Linear_0"]
    net, inner = found["Net_0"], found["Net_0/Linear_0"]
    assert (net.class_, net.calls, inner.class_, inner.calls) == ("Net", 1, "Linear", 2)
    assert (net.forward_ns, net.forward_self_ns, inner.forward_ns, inner.forward_self_ns) == (105, 5, 100, 100)
    assert (net.host_ns, inner.host_ns, inner.host_self_ns) == (100_000, 20_000, 8_000)
    assert net.backward_ns == 0


def test_backward_belongs_to_the_module_of_its_forward() -> None:
    built = trace().python("nn.Module: Net_0", at=0, lasts=100_000)
    linear(built, 10_000, 1)
    backward: dict[str, Any] = {"Sequence number": 1, "Fwd thread id": 1}
    built.operator(
        "autograd::engine::evaluate_function: AddmmBackward0", at=200_000, lasts=9_000, thread=200, **backward
    )
    built.operator("aten::mm", at=201_000, lasts=3_000, thread=200)
    built.launch("gemm_bwd", at=202_000, runs_at=700_000, lasts=140, thread=200)
    found = modules(built)
    assert (found["Net_0/Linear_0"].forward_ns, found["Net_0/Linear_0"].backward_self_ns) == (70, 140)
    assert (found["Net_0"].backward_ns, found["Net_0"].backward_self_ns) == (140, 0)


def test_a_kernel_that_a_module_launches_itself() -> None:
    built = (
        trace().python("nn.Module: Net_0", at=0, lasts=10_000).launch("triton_mine", at=100, runs_at=50_000, lasts=9)
    )
    assert modules(built)["Net_0"].forward_self_ns == 9


def test_endless_nesting_of_modules_is_folded() -> None:
    built = trace()
    for depth in range(2_000):
        built.python(f"nn.Module: M_{depth}", at=10 * depth, lasts=100_000 - 20 * depth)
    built.operator("aten::add", at=30_000, lasts=100).launch("k", at=30_010, runs_at=200_000, lasts=7, call_lasts=10)
    found = modules(built)
    assert 100 < len(found) < 400
    assert max(map(len, found)) < 5_000
    assert found["M_0"].forward_ns == 7
    assert all(row.calls == 1 for row in found.values())


def test_without_frames_there_are_no_modules() -> None:
    assert modules(trace().operator("aten::add", at=0, lasts=10)) == {}


# --- phases -------------------------------------------------------------------------------------------


def test_phases() -> None:
    built = trace().annotation("Optimizer.step#Adam.step", at=50_000, lasts=9_000)
    built.annotation("enumerate(DataLoader)#_Iter.__next__", at=80_000, lasts=9_000)
    for at, name, thread, lasts in (
        (0, "aten::mm", 100, 10),
        (20_000, "autograd::engine::evaluate_function: MmBackward", 200, 20),
        (51_000, "aten::_foreach_add", 100, 40),
        (81_000, "aten::stack", 100, 80),
    ):
        built.operator(name, at=at, lasts=5_000, thread=thread)
        built.launch("k", at=at + 100, runs_at=200_000 + at, lasts=lasts, thread=thread)
    built.kernel("nobody's", at=900_000, lasts=160)
    rows = analyzed(built).phases
    assert [(row.phase, row.device_ns, row.device_events) for row in rows] == [
        ("forward", 10, 1), ("backward", 20, 1), ("optimizer", 40, 1), ("other", 240, 2),
    ]  # fmt: skip
    assert [row.host_ns for row in rows] == [4_000] * 4


def test_phases_of_a_device_are_unions() -> None:
    built = trace()
    for stream in (7, 8):
        built.operator("aten::mm", at=10_000 * stream, lasts=5_000)
        built.launch("k", at=10_000 * stream + 10, runs_at=500_000, lasts=100, stream=stream)
    assert next(row.device_ns for row in analyzed(built).phases if row.phase == "forward") == 100


# --- communication ------------------------------------------------------------------------------------


def record(collective: str, *, sent: int, received: int, dtype: str = "BFloat16", group: str = "0") -> dict[str, Any]:
    return {
        "Collective name": collective, "dtype": dtype, "In msg nelems": sent, "Out msg nelems": received,
        "Process Group Name": group, "Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]",
    }  # fmt: skip


def communication(built: TraceBuilder) -> list[Collective]:
    return communication_results(analyzed(built).collectives)


@pytest.mark.parametrize(
    ("collective", "size"),
    [("allreduce", 200), ("all_gather_into_tensor", 800), ("_allgather_base", 800), ("reduce_scatter_tensor", 200)],
)
def test_sizes_are_those_of_the_larger_side(collective: str, size: int) -> None:
    arguments = record(collective, sent=100, received=400)
    (row,) = communication(trace().kernel("ncclDevKernel", at=0, lasts=10, **arguments))
    assert (row.collective, row.bytes, row.group_size, row.ranks, row.dtype) == (
        collective,
        size,
        4,
        [0, 1, 2, 3],
        "BFloat16",
    )


@pytest.mark.parametrize("sent", [-1, 2**62, None])
@pytest.mark.parametrize("dtype", ["Float", "unheard of"])
def test_sizes_that_cannot_be_are_unknown(sent: int | None, dtype: str) -> None:
    arguments = {**record("allreduce", sent=0, received=0, dtype=dtype), "In msg nelems": sent}
    (row,) = communication(trace().kernel("ncclDevKernel", at=0, lasts=10, **arguments))
    assert row.bytes is None


def test_one_message_of_unknown_size_makes_the_sum_unknown() -> None:
    built = trace()
    for at, sent in ((0, 5), (100, -1)):
        built.kernel("ncclDevKernel", at=at, lasts=10, **record("allreduce", sent=sent, received=5))
    (row,) = communication(built)
    assert (row.count, row.bytes, row.total_ns) == (2, None, 20)


def test_overlap_is_measured_against_compute() -> None:
    built = trace().kernel("gemm", at=50, lasts=100)
    for at in (0, 100):
        built.kernel("ncclDevKernel", at=at, lasts=70, stream=20, **record("allreduce", sent=5, received=5))
    built.kernel("ncclDevKernel", at=500, lasts=5, stream=20, **record("allreduce", sent=5, received=5, group="1"))
    first, second = communication(built)
    assert (first.group, first.count, first.min_ns, first.max_ns) == ("0", 2, 70, 70)
    assert (first.total_ns, first.overlap_ns, first.exposed_ns) == (140, 70, 70)
    assert (second.group, second.overlap_ns, second.exposed_ns) == ("1", 0, 5)


def test_a_kernel_takes_the_record_of_its_operator_else_its_name() -> None:
    built = trace().operator("record_param_comms", at=0, lasts=5_000, **record("broadcast", sent=5, received=5))
    built.launch("ncclDevKernel_Generic", at=100, runs_at=9_000, lasts=10)
    built.kernel("ncclDevKernel_ReduceScatter_Sum", at=10_000, lasts=20)
    built.kernel("nvshmem_something", at=11_000, lasts=30)
    assert [row.collective for row in communication(built)] == ["unknown", "reduce_scatter", "broadcast"]


def test_ranks_that_are_not_all_written_out_are_unknown() -> None:
    arguments = {**record("allreduce", sent=5, received=5), "Process Group Ranks": "[0, 1, ..., 9]"}
    assert communication(trace().kernel("ncclDevKernel", at=0, lasts=10, **arguments))[0].ranks is None


# --- memory -------------------------------------------------------------------------------------------


def memory(built: TraceBuilder) -> list[MemoryPeak]:
    return analyzed(built).memory


def test_peaks_and_course() -> None:
    built = trace().operator("origin", at=0, lasts=1)
    for at, allocated in ((100, 10), (200, 500), (300, 20)):
        built.memory(at=at, size=1, allocated=allocated, reserved=1000 - allocated)
    (row,) = memory(built)
    assert (row.device_type, row.device, row.events) == ("cuda", 0, 3)
    assert (row.peak_allocated_bytes, row.peak_reserved_bytes) == (500, 990)
    assert (row.allocated_start_bytes, row.allocated_end_bytes) == (10, 20)
    assert row.curve == [(100, 10), (200, 500), (300, 20)]


def test_a_long_course_is_thinned_and_keeps_its_peak() -> None:
    built = trace()
    for i in range(5_000):
        built.memory(at=i, size=1, allocated=10**9 if i == 3_333 else i, reserved=0)
    (row,) = memory(built)
    assert len(row.curve) <= 500
    assert (3_333, 10**9) in row.curve


def test_allocators_are_told_apart() -> None:
    built = (
        trace().memory(at=0, size=1, allocated=1, reserved=1).memory(at=1, size=1, allocated=2, reserved=1, device=1)
    )
    built.events[0]["args"].update({"Device Type": 0, "Device Id": -1})
    built.memory(at=2, size=1, allocated=9, reserved=9)
    built.events[2]["args"] = {"Device Type": 6, "Device Id": 0, "Bytes": 5}
    rows = memory(built)
    assert [(row.device_type, row.device, row.peak_allocated_bytes) for row in rows] == [
        ("cpu", -1, 1), ("cuda", 1, 2), ("hip", 0, None),
    ]  # fmt: skip


# --- input and host -----------------------------------------------------------------------------------


def test_input_waits_and_what_the_device_had_to_do_meanwhile() -> None:
    built = trace().kernel("k", at=0, lasts=150).kernel("k", at=350, lasts=10)
    for at in (100, 300):
        built.annotation("enumerate(DataLoader)#_Iter.__next__", at=at, lasts=100)
    (row,) = analyzed(built).input
    assert (row.count, row.total_ns, row.max_ns, row.exposed_ns) == (2, 200, 100, 140)


def test_any_device_that_works_hides_a_wait() -> None:
    built = trace().kernel("k", at=0, lasts=10).kernel("k", at=100, lasts=60, device=1)
    built.annotation("enumerate(DataLoader)#_Iter.__next__", at=100, lasts=100)
    assert analyzed(built).input[0].exposed_ns == 40


def test_threads_and_calls() -> None:
    built = (
        trace()
        .step(1, at=0, lasts=10_000)
        .operator("aten::mm", at=100, lasts=1_000)
        .launch("k", at=200, runs_at=5_000, lasts=10, call_lasts=300)
        .operator("autograd::engine::evaluate_function: X", at=100, lasts=50, thread=200)
        .runtime("cudaDeviceSynchronize", at=3_000, lasts=400)
        .runtime("hipMalloc", at=4_000, lasts=50)
        .runtime("cudaGraphLaunch", at=5_000, lasts=20)
        .runtime("cudaEventQuery", at=6_000, lasts=1)
        .annotation("worker", at=0, lasts=10, thread=300)
    )
    host = analyzed(built).host
    assert [(row.tid, row.role, row.launches) for row in host.threads] == [
        (100, "training", 1), (200, "backward", 0), (300, "other", 0),
    ]  # fmt: skip
    training = host.threads[0]
    assert (training.operator_self_ns, training.runtime_ns) == (700, 771)
    assert [(row.name, row.kind, row.count, row.total_ns) for row in host.calls] == [
        ("cudaDeviceSynchronize", "sync", 1, 400),
        ("cudaLaunchKernel", "launch", 1, 300),
        ("hipMalloc", "allocator", 1, 50),
        ("cudaGraphLaunch", "graph", 1, 20),
        ("cudaEventQuery", "other", 1, 1),
    ]


def test_autograds_thread_is_known_by_its_nodes_where_no_number_says_so() -> None:
    built = (
        trace()
        .step(1, at=0, lasts=10_000)
        .operator("aten::mm", at=100, lasts=1_000)
        .operator("CudnnConvolutionBackward0", at=2_000, lasts=500, thread=200)
        .operator("torch::autograd::AccumulateGrad", at=3_000, lasts=100, thread=300)
        .operator("aten::copy_", at=4_000, lasts=100, thread=400)
    )

    roles = {row.tid: row.role for row in analyzed(built).host.threads}

    assert roles == {100: "training", 200: "backward", 300: "backward", 400: "other"}
