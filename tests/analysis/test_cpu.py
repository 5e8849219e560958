"""Jobs without an accelerator: the CPU of the training thread is the device."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.analysis.results import Device
from whystall.analysis.trace_analysis import analyze_trace
from whystall.testing import TraceBuilder, trace


def cpu(built: TraceBuilder) -> Device:
    (device,) = analyze_trace(built.load()).devices
    assert device.kind == "cpu"
    assert device.ledger.total_ns == device.window_ns
    return device


def parts(device: Device) -> dict[str, int]:
    return {part: value for part, value in device.ledger.parts().items() if value}


def test_operators_compute_and_the_rest_has_its_cause() -> None:
    built = (
        trace()
        .step(1, at=0, lasts=1_000)
        .annotation("enumerate(DataLoader)#_Iter.__next__", at=0, lasts=200)
        .operator("aten::stack", at=50, lasts=50)
        .operator("aten::mm", at=300, lasts=400)
        .python("<built-in function collect>", at=800, lasts=100)
    )
    assert parts(cpu(built)) == {"compute": 400, "idle_input": 200, "idle_gc": 100, "idle_python": 300}


def test_the_backward_thread_computes_too() -> None:
    built = (
        trace()
        .step(1, at=0, lasts=1_000)
        .operator("aten::mm", at=100, lasts=200)
        .operator("autograd::engine::evaluate_function: MmBackward", at=250, lasts=300, thread=200)
        .operator("aten::elsewhere", at=0, lasts=1_000, thread=999)
    )
    assert parts(cpu(built)) == {"compute": 450, "idle_python": 550}


def test_collectives_on_any_thread_communicate() -> None:
    built = (
        trace()
        .step(1, at=0, lasts=1_000)
        .operator("aten::mm", at=100, lasts=200)
        .operator("gloo:all_reduce", at=200, lasts=300, thread=300)
    )
    device = cpu(built)
    assert parts(device) == {"compute": 200, "communication": 200, "idle_python": 600}
    assert (device.compute_communication_overlap_ns, device.exposed_communication_ns) == (100, 200)
    assert (device.busy_ns, device.idle_ns) == (400, 600)


def test_what_goes_through_shared_memory_between_processes_is_communication() -> None:
    for name in ("_C::shm_allreduce", "sgl_kernel::shm_allgather", "_C::shm_send_tensor_list", "aten::gather"):
        built = trace().step(1, at=0, lasts=500).operator("aten::mm", at=0, lasts=100).operator(name, at=100, lasts=300)
        exchanged = 0 if name.startswith("aten") else 300
        assert cpu(built).exposed_communication_ns == exchanged


def test_what_a_thread_computes_while_its_message_is_on_its_way_is_compute() -> None:
    """gloo writes a message from its call to its wait: what is left of it behind the last operator is waited for."""
    built = (
        trace()
        .step(1, at=0, lasts=1_000)
        .annotation("gloo:send", at=100, lasts=800)
        .operator("aten::mm", at=200, lasts=300)
        .operator("aten::add", at=600, lasts=100)
        .annotation("gloo:recv", at=900, lasts=50)
    )
    device = cpu(built)
    assert parts(device) == {"compute": 400, "communication": 250, "idle_python": 350}
    assert device.compute_communication_overlap_ns == 0


def test_a_function_of_autograd_that_waits_for_its_collective_computes_nothing_meanwhile() -> None:
    """It sums over ranks between two products; gloo's thread does so, and then once more beside the last product."""
    built = (
        trace()
        .step(1, at=0, lasts=1_000)
        .operator("SumOverRanks", at=100, lasts=700)
        .operator("aten::mm", at=150, lasts=100)
        .operator("c10d::allreduce_", at=300, lasts=20)
        .operator("gloo:all_reduce", at=340, lasts=200, thread=300)
        .operator("aten::mm", at=600, lasts=100)
        .operator("gloo:all_reduce", at=610, lasts=50, thread=300)
    )
    device = cpu(built)
    # From the call on 20 are the operator's until gloo begins, and 60 from its end to the next product.
    assert parts(device) == {"compute": 700 - 20 - 200, "communication": 20 + 200, "idle_python": 300}
    assert device.compute_communication_overlap_ns == 50


def test_what_is_compiled_computes_on_while_its_collective_is_on_its_way() -> None:
    built = (
        trace()
        .step(1, at=0, lasts=1_000)
        .operator("Torch-Compiled Region: 0/0", at=0, lasts=1_000)
        .operator("c10d::allreduce_", at=100, lasts=20)
        .operator("gloo:all_reduce", at=120, lasts=500, thread=300)
        .operator("_c10d_functional::wait_tensor", at=900, lasts=50)
    )
    assert parts(cpu(built)) == {"compute": 930, "communication": 70}


def test_steps_follow_each_other() -> None:
    built = trace()
    for number in range(3):
        built.step(number, at=1_000 * number, lasts=900).operator("aten::mm", at=1_000 * number + 100, lasts=500)
    steps = cpu(built).steps
    assert [(step.window_ns, step.host_ns, step.compute_ns, step.busy_ns) for step in steps] == [
        (1_000, 900, 500, 500), (1_000, 900, 500, 500), (900, 900, 500, 500),
    ]  # fmt: skip
    assert [step.start_ns for step in steps] == [0, 1_000, 2_000]


def test_what_the_profiler_does_before_and_after_the_steps_is_not_the_jobs() -> None:
    built = trace().python("profiler.py: start_trace", at=0, lasts=500)
    for number in (1, 2):
        built.step(number, at=1_000 * number, lasts=1_000).operator("aten::mm", at=1_000 * number, lasts=600)
    device = cpu(built.python("profiler.py: stop_trace", at=3_000, lasts=20_000))
    assert parts(device) == {"compute": 1_200, "idle_python": 800}
    assert (device.start_ns, device.window_ns) == (1_000, 2_000)


def test_without_steps_the_whole_recording_is_accounted_for() -> None:
    device = cpu(trace().operator("aten::mm", at=100, lasts=600).python("main", at=0, lasts=1_000))
    assert (parts(device), device.window_ns) == ({"compute": 600, "idle_python": 400}, 1_000)


def test_nothing_recorded_is_no_device() -> None:
    assert analyze_trace(trace().load()).devices == []


SPAN = st.tuples(st.integers(0, 60), st.integers(0, 20))
NAMES = st.sampled_from(
    [
        ("cpu_op", "aten::mm"),
        ("cpu_op", "gloo:all_reduce"),
        ("cpu_op", "autograd::engine::evaluate_function: X"),
        ("user_annotation", "enumerate(DataLoader)#_Iter.__next__"),
        ("user_annotation", "Optimizer.step#A.step"),
        ("python_function", "main"),
        ("cuda_runtime", "cudaMalloc"),
    ]
)


@given(
    st.lists(st.tuples(NAMES, SPAN, st.sampled_from([100, 200, 300])), min_size=1, max_size=12),
    st.lists(SPAN, max_size=4),
)
@settings(max_examples=200)
def test_ledgers_add_up(events: list[Any], steps: list[tuple[int, int]]) -> None:
    built = trace()
    for number, (at, lasts) in enumerate(steps):
        built.step(number, at=at, lasts=lasts)
    for (category, name), (at, lasts), thread in events:
        built.event(category, name, at=at, lasts=lasts, thread=thread)
    for device in analyze_trace(built.load()).devices:
        assert device.kind == "cpu"
        for ledger, window in [(device.ledger, device.window_ns)] + [(s.ledger, s.window_ns) for s in device.steps]:
            assert ledger.total_ns == window
            assert min(ledger.parts().values()) >= 0
        assert device.busy_ns == device.ledger.compute + device.ledger.communication
