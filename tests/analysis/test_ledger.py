"""The ledger: every part in a trace made for it, and all parts against brute force on random timelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.analysis.results import Device, Ledger
from whystall.analysis.trace_analysis import analyze_trace
from whystall.testing import TraceBuilder, trace

FOREVER = 50_000


def device_of(built: TraceBuilder) -> Device:
    (device,) = analyze_trace(built.load()).devices
    return device


def ledger_of(built: TraceBuilder) -> dict[str, int]:
    return {part: value for part, value in device_of(built).ledger.parts().items() if value}


# --- one part at a time -------------------------------------------------------------------------------
# A kernel ends at 10 us; the next is launched from 60 to 61 us and arrives at 65 us. What the launching
# thread does from 10 to 60 us is the cause.


def gap() -> TraceBuilder:
    return (
        trace()
        .launch("first", at=0, runs_at=2_000, lasts=8_000)
        .launch("second", at=60_000, runs_at=65_000, lasts=5_000)
    )


def elsewhere(built: TraceBuilder) -> TraceBuilder:
    """With an operator on a thread that launches nothing: the host was recorded."""
    return built.operator("aten::add", at=0, lasts=1_000, thread=777)


WORK = {"compute": 13_000}
ARRIVAL = {"idle_launch": 5_000}
CAUSES: dict[str, tuple[str, Callable[[TraceBuilder], object]]] = {
    "input": ("idle_input", lambda b: b.annotation("enumerate(DataLoader)#_Iter.__next__", at=10_000, lasts=FOREVER)),
    "input by frames": (
        "idle_input",
        lambda b: b.python("torch/utils/data/dataloader.py(701): __next__", at=10_000, lasts=FOREVER),
    ),
    "what runs in the loader is input": (
        "idle_input",
        lambda b: (
            b.annotation("enumerate(DataLoader)#_Iter.__next__", at=10_000, lasts=FOREVER)
            .operator("aten::stack", at=20_000, lasts=10_000)
            .runtime("cudaMalloc", at=40_000, lasts=10_000)
        ),
    ),
    "synchronisation": ("idle_sync", lambda b: b.runtime("cudaStreamSynchronize", at=10_000, lasts=FOREVER)),
    "a copy that waits": ("idle_sync", lambda b: b.runtime("cudaMemcpy", at=10_000, lasts=FOREVER)),
    "python": ("idle_python", lambda b: b.python("train.py(7): main", at=10_000, lasts=FOREVER)),
    "an annotation": ("idle_python", lambda b: b.annotation("forward", at=10_000, lasts=FOREVER)),
    "between events a thread runs Python": ("idle_python", elsewhere),
    "of a host that was not recorded nobody knows": ("idle_unknown", lambda b: b),
    "dispatch": ("idle_dispatch", lambda b: b.operator("aten::add", at=10_000, lasts=FOREVER)),
    "another launch": ("idle_launch", lambda b: b.runtime("cudaLaunchKernel", at=10_000, lasts=FOREVER)),
    "a copy that does not wait": ("idle_launch", lambda b: b.runtime("cudaMemcpyAsync", at=10_000, lasts=FOREVER)),
    "allocation": ("idle_allocator", lambda b: b.runtime("cudaMalloc", at=10_000, lasts=FOREVER)),
    "garbage collection": ("idle_gc", lambda b: b.python("<built-in function collect>", at=10_000, lasts=FOREVER)),
    "the innermost event counts": (
        "idle_dispatch",
        lambda b: b.python("main", at=0, lasts=70_000).operator("aten::add", at=10_000, lasts=FOREVER),
    ),
    "of another thread that is waited for": (
        "idle_dispatch",
        lambda b: (
            b.python("backward", at=10_000, lasts=FOREVER)
            .operator("autograd::engine::evaluate_function: X", at=10_000, lasts=FOREVER, thread=200)
            .launch("elsewhere", at=66_000, runs_at=67_000, lasts=10, thread=200)
        ),
    ),
    "of a thread that launches nothing nobody waits": (
        "idle_python",
        lambda b: b.operator("aten::add", at=10_000, lasts=FOREVER, thread=999),
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_what_the_launching_thread_did(name: str) -> None:
    part, add = CAUSES[name]
    built = gap()
    add(built)
    wanted = {**WORK, **ARRIVAL}
    wanted[part] = wanted.get(part, 0) + FOREVER
    assert ledger_of(built) == wanted
    cause = device_of(built).idle_cause
    assert cause is not None
    assert (cause.host_late_ns, cause.queued_but_waiting_ns, cause.launch_unknown_ns) == (55_000, 0, 0)


def test_queued_work_that_waits_is_a_dependency() -> None:
    built = (
        trace()
        .launch("first", at=0, runs_at=2_000, lasts=8_000)
        .launch("second", at=3_000, runs_at=65_000, lasts=5_000)
    )
    assert ledger_of(built) == {**WORK, "idle_dependency": 55_000}
    cause = device_of(built).idle_cause
    assert cause is not None
    assert cause.queued_but_waiting_ns == 55_000


@pytest.mark.parametrize(("length", "part"), [(1, "idle_gap"), (9_999, "idle_gap"), (10_000, "idle_dependency")])
def test_a_short_gap_between_queued_events(length: int, part: str) -> None:
    built = (
        trace()
        .launch("first", at=0, runs_at=5_000, lasts=5_000)
        .launch("second", at=1_000, runs_at=10_000 + length, lasts=8_000)
    )
    assert ledger_of(built) == {**WORK, part: length}


@pytest.mark.parametrize("returns_at", [2_000, 60_000])
def test_gaps_between_the_events_of_one_graph_are_the_devices_own(returns_at: int) -> None:
    """Also where the call that launched it has not returned."""
    built = trace().runtime("hipGraphLaunch", at=0, lasts=returns_at, correlation=5)
    for at, lasts in ((2_000, 8_000), (65_000, 5_000)):
        built.kernel("of the graph", at=at, lasts=lasts, correlation=5)
    assert ledger_of(built) == {**WORK, "idle_gap": 55_000}


def test_a_launch_that_takes_long_to_arrive_waits_for_something() -> None:
    built = (
        trace()
        .launch("first", at=0, runs_at=2_000, lasts=8_000)
        .launch("second", at=10_000, runs_at=65_000, lasts=5_000)
    )
    assert ledger_of(built) == {**WORK, "idle_launch": 1_000 + 10_000, "idle_dependency": 44_000}


def test_a_call_that_still_runs_when_the_gap_begins_is_late() -> None:
    built = (
        trace()
        .launch("first", at=0, runs_at=2_000, lasts=8_000)
        .launch("second", at=9_000, runs_at=15_000, lasts=5_000, call_lasts=4_000)
    )
    assert ledger_of(built) == {**WORK, "idle_launch": 5_000}
    cause = device_of(built).idle_cause
    assert cause is not None
    assert cause.host_late_ns == 5_000


def test_without_the_launch_nothing_can_be_said() -> None:
    built = trace().launch("first", at=0, runs_at=2_000, lasts=8_000).kernel("second", at=65_000, lasts=5_000)
    assert ledger_of(built) == {**WORK, "idle_unknown": 55_000}
    (unknown,) = device_of(built).idle_unknown
    assert (unknown.idle_ns, unknown.missing_signal) == (55_000, "launch calls")


def test_before_a_thread_s_first_event_nothing_is_known_of_it() -> None:
    built = trace().kernel("first", at=2_000, lasts=8_000).launch("second", at=60_000, runs_at=65_000, lasts=5_000)
    assert ledger_of(built) == {**WORK, **ARRIVAL, "idle_unknown": FOREVER}
    (unknown,) = device_of(built).idle_unknown
    assert (unknown.idle_ns, unknown.missing_signal) == (FOREVER, "host events")


def test_between_the_events_of_all_launching_threads_the_program_runs_python() -> None:
    built = (
        trace()
        .launch("first", at=0, runs_at=2_000, lasts=8_000)
        .launch("second", at=60_000, runs_at=65_000, lasts=5_000, thread=555)
    )
    assert ledger_of(elsewhere(built)) == {**WORK, **ARRIVAL, "idle_python": FOREVER}


def test_each_instant_belongs_to_the_first_class_that_runs() -> None:
    built = (
        trace()
        .kernel("gemm", at=0, lasts=100)
        .kernel("ncclDevKernel_AllReduce", at=50, lasts=150, stream=20)
        .kernel("Memcpy HtoD", at=150, lasts=100, stream=30, category="gpu_memcpy")
        .kernel("Memset", at=90, lasts=5, stream=30, category="gpu_memset")
    )
    device = device_of(built)
    assert ledger_of(built) == {"compute": 100, "communication": 100, "memory": 50}
    assert (device.compute_ns, device.communication_ns, device.memory_ns) == (100, 150, 105)
    assert device.compute_communication_overlap_ns == 50
    # what nothing else hides: communication alone, memory alone
    assert (device.exposed_communication_ns, device.exposed_memory_ns) == (50, 50)
    assert (device.busy_ns, device.idle_ns, device.window_ns, device.kernel_sum_ns) == (250, 0, 250, 355)
    assert (device.counts.compute, device.counts.communication, device.counts.memory) == (1, 1, 2)


def test_streams_are_unions_and_nothing_is_summed_over_them() -> None:
    built = (
        trace()
        .kernel("a", at=0, lasts=100, stream=0)
        .kernel("b", at=50, lasts=100, stream=0)
        .kernel("c", at=0, lasts=10, stream=7)
    )
    device = device_of(built)
    assert [(row.stream, row.events, row.busy_ns) for row in device.streams] == [(0, 2, 150), (7, 1, 10)]
    assert device.same_stream_overlaps == 1
    assert device.busy_ns == 150


def test_devices_are_accounts_of_their_own() -> None:
    built = trace()
    for device in range(3):
        built.launch("k", at=device * 100, runs_at=1_000, lasts=50 * (device + 1), device=device)
    found = analyze_trace(built.load()).devices
    assert [(device.device, device.window_ns, device.gpu_events) for device in found] == [
        (0, 50, 1),
        (1, 100, 1),
        (2, 150, 1),
    ]


def test_a_step_s_work_is_what_it_launched() -> None:
    built = (
        trace()
        .step(1, at=0, lasts=1_000)
        .step(2, at=1_000, lasts=1_000)
        .launch("one", at=100, runs_at=5_000, lasts=1_000)
        .launch("also one", at=900, runs_at=6_500, lasts=500)
        .launch("two", at=1_100, runs_at=9_000, lasts=2_000)
    )
    first, second = device_of(built).steps
    assert (first.name, first.gpu_events, first.busy_ns, first.window_ns) == ("ProfilerStep#1", 2, 1_500, 4_000)
    assert (first.device_span_ns, first.host_ns) == (2_000, 1_000)
    assert (second.gpu_events, second.busy_ns, second.window_ns) == (1, 2_000, 2_000)
    assert first.ledger.parts()["idle_gap"] == 2_500  # both queued, each wait below 10 us


def test_outliers_are_marked() -> None:
    built = trace()
    at = 0
    for number in range(6):
        lasts = 3_000 if number == 3 else 1_000
        built.step(number, at=at, lasts=lasts).launch("k", at=at + 10, runs_at=at + 20, lasts=lasts - 100)
        at += lasts
    assert [step.outlier for step in device_of(built).steps] == [False, False, False, True, False, False]


@pytest.mark.parametrize(("busy", "outlier"), [(900, False), (2_900, True)])
def test_the_last_step_is_compared_by_its_own_events(busy: int, *, outlier: bool) -> None:
    """Its window ends with them, and the others' with the next step: a pause of theirs is no reason to pass it."""
    built = trace()
    for number in range(6):
        at = number * 20_000
        built.step(number, at=at, lasts=20_000)
        built.launch("k", at=at + 10, runs_at=at + 20, lasts=busy if number == 5 else 900)
    assert [step.outlier for step in device_of(built).steps] == [*[False] * 5, outlier]


# --- against brute force ------------------------------------------------------------------------------
# Times are multiples of a microsecond, so that a microsecond is an instant.

UNIT = 1_000
LAST = 60
SHORT = 10
CLASSES = (("gemm", "kernel"), ("ncclAllReduce", "kernel"), ("Memcpy", "gpu_memcpy"))
SPAN = st.tuples(st.integers(0, LAST), st.integers(0, 12))


@dataclass(frozen=True)
class Kernel:
    start: int
    lasts: int
    klass: int
    stream: int
    call: tuple[int, int] | None


KERNELS = st.builds(
    Kernel,
    st.integers(0, LAST),
    st.integers(0, 8),
    st.integers(0, 2),
    st.integers(0, 2),
    st.none() | st.tuples(st.integers(0, LAST), st.integers(0, 6)),
)
# what a host event is: its table, name, ledger part, and whether what is inside counts as it
HOST: tuple[tuple[str, str, str, bool], ...] = (
    ("python_function", "<built-in function collect>", "idle_gc", True),
    ("python_function", "train.py(7): main", "idle_python", False),
    ("user_annotation", "enumerate(DataLoader)#_Iter.__next__", "idle_input", True),
    ("user_annotation", "forward", "idle_python", False),
    ("cpu_op", "aten::add", "idle_dispatch", False),
    ("cuda_runtime", "cudaDeviceSynchronize", "idle_sync", False),
    ("cuda_runtime", "cudaMalloc", "idle_allocator", False),
)
RANKS = {"python_function": 0, "user_annotation": 1, "cpu_op": 2, "cuda_runtime": 3}
HOST_EVENTS = st.lists(st.tuples(st.sampled_from(HOST), SPAN), max_size=8)


class Oracle:
    """The definitions of docs/numbers.md, instant by instant, for one launching thread."""

    def __init__(self, kernels: list[Kernel], host: list[tuple[tuple[str, str, str, bool], tuple[int, int]]]) -> None:
        self.kernels = sorted(kernels, key=lambda kernel: kernel.start)
        calls = [("cuda_runtime", "cudaLaunchKernel", "idle_launch", False)]
        self.host = [(what, begin, begin + lasts) for what, (begin, lasts) in host]
        self.host += [(calls[0], kernel.call[0], sum(kernel.call)) for kernel in kernels if kernel.call is not None]
        self.begin = self.kernels[0].start
        self.end = max(kernel.start + kernel.lasts for kernel in kernels)

    def running(self, instant: int) -> set[int]:
        return {kernel.klass for kernel in self.kernels if kernel.start <= instant < kernel.start + kernel.lasts}

    def host_part(self, instant: int) -> str:
        """What the thread did: its latest-started event, or the outermost around it that counts for all inside."""
        order = [
            (begin, -end, RANKS[what[0]], index)
            for index, (what, begin, end) in enumerate(self.host)
            if begin <= instant < end
        ]
        if not order:
            inside = self.host and min(e[1] for e in self.host) <= instant < max(e[2] for e in self.host)
            return "idle_python" if inside else "idle_unknown"
        # ties between events of one table are made impossible by the test
        chain = [max(order)]
        while around := [entry for entry in order if entry < chain[-1] and self.contains(entry[3], chain[-1][3])]:
            chain.append(max(around))  # the innermost event around it; what only overlaps is a sibling
        parts = [self.host[entry[3]][0] for entry in reversed(chain)]
        return next((part for _, _, part, for_all_inside in parts if for_all_inside), parts[-1][2])

    def contains(self, outer: int, inner: int) -> bool:
        return self.host[outer][1] <= self.host[inner][1] and self.host[outer][2] >= self.host[inner][2]

    def ledger(self, begin: int, end: int) -> dict[str, int]:
        parts = dict.fromkeys(Ledger.__struct_fields__, 0)
        reached, gaps = self.begin, []
        for kernel in self.kernels:
            if kernel.start > reached:
                gaps.append((reached, kernel.start, kernel))
            reached = max(reached, kernel.start + kernel.lasts)
        for instant in range(begin, end):
            classes = self.running(instant)
            if classes:
                parts[("compute", "communication", "memory")[min(classes)]] += UNIT
                continue
            opened, closed, kernel = next(gap for gap in gaps if gap[0] <= instant < gap[1])
            parts[self.idle_part(instant, opened, closed, kernel)] += UNIT
        return parts

    def idle_part(self, instant: int, opened: int, closed: int, kernel: Kernel) -> str:
        if kernel.call is None:
            return "idle_unknown"
        called, returned = kernel.call[0], sum(kernel.call)
        if returned <= opened and called < opened:
            return "idle_gap" if closed - opened < SHORT else "idle_dependency"
        if instant < returned:
            return self.host_part(instant)
        return "idle_launch" if instant - max(returned, opened) < SHORT else "idle_dependency"


def built_from(kernels: list[Kernel], host: list[Any]) -> TraceBuilder:
    built = elsewhere(trace())
    for (category, name, _, _), (begin, lasts) in host:
        built.event(category, name, at=begin * UNIT, lasts=lasts * UNIT)
    for kernel in kernels:
        name, category = CLASSES[kernel.klass]
        where: dict[str, Any] = {"stream": kernel.stream, "category": category}
        if kernel.call is None:
            built.kernel(name, at=kernel.start * UNIT, lasts=kernel.lasts * UNIT, **where)
        else:
            call, lasts = kernel.call
            built.launch(
                name,
                at=call * UNIT,
                call_lasts=lasts * UNIT,
                runs_at=kernel.start * UNIT,
                lasts=kernel.lasts * UNIT,
                **where,
            )
    return built


def without_ties(host: list[Any], kernels: list[Kernel]) -> bool:
    """Equal spans of one table nest in the order of the file, and of events that start together any may be the
    one that ends a gap: neither is part of the definitions."""
    spans = [(what[0], span) for what, span in host] + [
        ("cuda_runtime", kernel.call) for kernel in kernels if kernel.call
    ]
    return len(set(spans)) == len(spans) and len({kernel.start for kernel in kernels}) == len(kernels)


@given(st.lists(KERNELS, min_size=1, max_size=7), HOST_EVENTS)
@settings(max_examples=250)
def test_every_instant_against_the_definitions(kernels: list[Kernel], host: list[Any]) -> None:
    device = device_of(built_from(kernels, host))
    oracle = Oracle(kernels, host)
    assert device.window_ns == (oracle.end - oracle.begin) * UNIT
    assert device.ledger.total_ns == device.window_ns

    running = [oracle.running(instant) for instant in range(oracle.begin, oracle.end)]
    unions: list[tuple[int, Callable[[set[int]], bool]]] = [
        (device.busy_ns, bool),
        (device.compute_ns, lambda classes: 0 in classes),
        (device.communication_ns, lambda classes: 1 in classes),
        (device.memory_ns, lambda classes: 2 in classes),
        (device.compute_communication_overlap_ns, lambda classes: {0, 1} <= classes),
        (device.exposed_communication_ns, lambda classes: classes == {1}),
        (device.exposed_memory_ns, lambda classes: classes == {2}),
    ]
    for found, counts in unions:
        assert found == sum(map(counts, running)) * UNIT
    if without_ties(host, kernels):
        assert device.ledger.parts() == oracle.ledger(oracle.begin, oracle.end)


@given(
    st.lists(KERNELS, min_size=1, max_size=10),
    st.lists(st.tuples(st.sampled_from(HOST), SPAN, st.sampled_from([100, 200, 300])), max_size=10),
    st.lists(SPAN, max_size=4),
    st.lists(st.integers(0, 2), min_size=10, max_size=10),
)
@settings(max_examples=250)
def test_ledgers_add_up_on_every_device_and_in_every_step(
    kernels: list[Kernel], host: list[Any], steps: list[tuple[int, int]], places: list[int]
) -> None:
    built = trace()
    for number, (begin, lasts) in enumerate(steps):
        built.step(number, at=begin * UNIT, lasts=lasts * UNIT)
    for (category, name, _, _), (begin, lasts), thread in host:
        built.event(category, name, at=begin * UNIT, lasts=lasts * UNIT, thread=thread)
    for kernel, place in zip(kernels, places, strict=False):
        name, category = CLASSES[kernel.klass]
        call, lasts = kernel.call or (0, 0)
        where: dict[str, Any] = {"stream": kernel.stream, "category": category, "device": place % 2}
        built.launch(
            name,
            at=call * UNIT,
            call_lasts=lasts * UNIT,
            runs_at=kernel.start * UNIT,
            lasts=kernel.lasts * UNIT,
            thread=(100, 200, 300)[place],
            **where,
        )
    for device in analyze_trace(built.load()).devices:
        cause = device.idle_cause
        assert cause is not None
        assert device.busy_ns + device.idle_ns == device.window_ns == device.ledger.total_ns
        assert cause.host_late_ns + cause.queued_but_waiting_ns + cause.launch_unknown_ns == device.idle_ns
        assert sum(entry.idle_ns for entry in device.idle_unknown) == device.ledger.idle_unknown
        for ledger, window in [(device.ledger, device.window_ns)] + [(s.ledger, s.window_ns) for s in device.steps]:
            assert ledger.total_ns == window
            assert min(ledger.parts().values()) >= 0
        for step in device.steps:
            assert 0 <= step.busy_ns <= step.device_span_ns
