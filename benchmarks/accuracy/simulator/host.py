"""A rank of the simulated job: its threads, its runtime calls, its device, and what the profiler saw of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.accuracy.simulator.device import Activity, Device, Meeting
from benchmarks.accuracy.simulator.engine import Clock, Returning, Signal, Steps
from benchmarks.accuracy.simulator.machine import Machine
from benchmarks.accuracy.simulator.operators import Call, Kernel, Operator, Sync

COMPUTE_STREAM = 7
PROCESS = 41_200


@dataclass(slots=True)
class Span:
    """One host event."""

    category: str
    name: str
    thread: int
    start_ns: int
    end_ns: int
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SyncSpan:
    """One ``cuda_sync`` event."""

    name: str
    stream: int
    start_ns: int
    end_ns: int
    correlation: int
    arguments: dict[str, Any] = field(default_factory=dict)


class Rank:
    """One process with one device."""

    def __init__(self, clock: Clock, rank: int, machine: Machine, *, seed: int, clock_offset_ns: int = 0) -> None:
        self.clock = clock
        self.rank = rank
        self.device_index = rank % 8
        self.machine = machine
        self.costs = machine.costs
        self.seed = seed
        self.clock_offset_ns = clock_offset_ns
        self.compute_scale = 1.0
        self.device = Device(
            clock,
            gap_ns=self.costs.kernel_gap_ns,
            event_latency_ns=self.costs.event_latency_ns,
            slows_compute_milli=machine.fabric.slows_compute_milli,
        )
        self.spans: list[Span] = []
        self.syncs: list[SyncSpan] = []
        self.forward_links: list[tuple[Span, Span]] = []
        self.recorded_on: dict[int, int] = {}
        self.step = 0
        self._correlation = 1_000 + rank
        self._external = 0
        self._sequence = 500
        self._python_id = 0
        self._runtime_lock: Signal | None = None
        self._occurrences: dict[tuple[int, str], int] = {}
        self._forward_spans: dict[int, Span] = {}

    def next_correlation(self) -> int:
        """A number that one call and what it launched share."""
        self._correlation += 3
        return self._correlation

    def next_external(self) -> int:
        """A number of an operator."""
        self._external += 1
        return self._external

    def next_python(self) -> int:
        """A number of a Python frame."""
        self._python_id += 1
        return self._python_id

    def next_sequence(self) -> int:
        """A number that a forward operator shares with its backward one."""
        self._sequence += 1
        return self._sequence

    def vary(self, label: str, nanoseconds: float) -> int:
        """A duration with this occurrence's deviation: the same whatever else happens in the run."""
        key = (self.step, label)
        count = self._occurrences[key] = self._occurrences.get(key, 0) + 1
        drawn = zlib.crc32(f"{self.seed}/{self.rank}/{self.step}/{label}/{count}".encode()) / 0xFFFFFFFF
        return max(1, round(nanoseconds * (1 + self.costs.jitter * (2 * drawn - 1))))


class Thread:
    """A host thread of a rank."""

    def __init__(self, rank: Rank, number: int) -> None:
        self.rank = rank
        self.number = number
        self.externals: list[int] = []
        self.frames: list[int] = []
        self.stacks = False

    @property
    def now(self) -> int:
        """Simulated time."""
        return self.rank.clock.now

    @contextmanager
    def span(self, category: str, name: str, **arguments: Any) -> Iterator[Span]:
        """Record a host event around what runs inside."""
        made = Span(category, name, self.number, self.now, self.now, arguments)
        if category in {"cpu_op", "user_annotation"}:
            made.arguments = {"External id": self.rank.next_external(), "Record function id": 0, **arguments}
            self.externals.append(made.arguments["External id"])
        elif category == "python_function":
            frame = self.rank.next_python()
            parent = self.frames[-1] if self.frames else None
            made.arguments = {"Python parent id": parent, "Python id": frame, **arguments}
            self.frames.append(frame)
        self.rank.spans.append(made)
        yield made
        made.end_ns = self.now
        if category in {"cpu_op", "user_annotation"}:
            self.externals.pop()
        elif category == "python_function":
            self.frames.pop()

    def frame(self, name: str, **arguments: Any) -> Any:
        """Record a Python frame, where stacks are recorded."""
        return self.span("python_function", name, **arguments) if self.stacks else _nothing()

    def collection(self) -> Any:
        """Record a collection of garbage, where stacks are recorded."""
        return self._plain("Python GC") if self.stacks else _nothing()

    @contextmanager
    def _plain(self, name: str) -> Iterator[None]:
        made = Span("python_function", name, self.number, self.now, self.now)
        self.rank.spans.append(made)
        yield
        made.end_ns = self.now

    def work(self, nanoseconds: float, label: str = "python") -> Steps:
        """Python or library code that nothing records."""
        if nanoseconds:
            yield self.rank.vary(label, nanoseconds)

    def operator(self, operator: Operator, *, sequence: int | None = None, forward_thread: int | None = None) -> Steps:
        """Run an operator."""
        arguments = operator.arguments()
        number = self.rank.next_sequence() if operator.differentiable else sequence
        if number is not None:
            arguments["Sequence number"] = number
            arguments["Fwd thread id"] = 0 if operator.differentiable else (forward_thread or 1)
        scale = self.rank.costs.operator_scale
        with self.span("cpu_op", operator.name, **arguments) as made:
            if operator.differentiable and number is not None:
                self.rank._forward_spans[number] = made  # noqa: SLF001 - a thread is a part of its rank
            yield self.rank.vary(operator.name, operator.before_ns * scale)
            for part in operator.body:
                if isinstance(part, Operator):
                    yield from self.operator(part, sequence=sequence, forward_thread=forward_thread)
                elif isinstance(part, Kernel):
                    yield from self.launch(part)
                elif isinstance(part, Sync):
                    yield from self.synchronize()
                else:
                    yield from self.call(part)
            yield self.rank.vary(operator.name, operator.after_ns * scale)
        if sequence is not None and operator.name.startswith("autograd::"):
            forward = self.rank._forward_spans.get(sequence)  # noqa: SLF001
            if forward is not None:
                self.rank.forward_links.append((forward, made))

    def last_sequence(self) -> int:
        """The number of the last forward operator."""
        return self.rank._sequence  # noqa: SLF001

    def runtime(
        self, name: str, nanoseconds: float, correlation: int | None = None, *, launches: bool = False
    ) -> Steps:
        """A runtime call.

        It waits while another thread holds the runtime's lock, a launch also for room in the queue.
        """
        held = self.rank._runtime_lock  # noqa: SLF001
        device = self.rank.device
        with self._runtime_span(name, correlation):
            while launches and device.outstanding >= self.rank.costs.queue_depth:
                yield device.room
            while held is not None and not held.fired:
                yield held
                held = self.rank._runtime_lock  # noqa: SLF001
            yield self.rank.vary(name, nanoseconds)

    def _runtime_span(self, name: str, correlation: int | None = None) -> Any:
        number = self.rank.next_correlation() if correlation is None else correlation
        external = {"External id": self.externals[-1]} if self.externals else {}
        category = "cuda_driver" if name.startswith("cuL") else "cuda_runtime"
        return self.span(category, name, **external, cbid=CALLBACK_IDS.get(name, 0), correlation=number)

    def call(self, call: Call) -> Steps:
        """A runtime call that launches nothing: it may lock the runtime or wait for the device to drain."""
        if not call.locks:
            yield from self.runtime(call.name, call.duration_ns)
            return
        mine = Signal()
        held = self.rank._runtime_lock  # noqa: SLF001
        with self._runtime_span(call.name):
            while held is not None and not held.fired:
                yield held
                held = self.rank._runtime_lock  # noqa: SLF001
            self.rank._runtime_lock = mine  # noqa: SLF001
            if call.drains:
                for activity in self.rank.device.last_of(None):
                    yield activity.done
            yield self.rank.vary(call.name, call.duration_ns)
            mine.fire()

    def launch(
        self,
        kernel: Kernel,
        *,
        stream: int = COMPUTE_STREAM,
        meeting: Meeting | None = None,
        arguments: dict[str, Any] | None = None,
        launch_ns: int | None = None,
    ) -> Returning[Activity]:
        """Launch a kernel, copy or set; returns what will run."""
        rank = self.rank
        correlation = rank.next_correlation()
        name = {"gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}.get(kernel.category, kernel.call)
        default_ns = rank.costs.memcpy_call_ns if kernel.category == "gpu_memcpy" else rank.costs.launch_ns
        yield from self.runtime(name, launch_ns or default_ns, correlation, launches=True)
        return self._submit(kernel, correlation, stream, meeting, arguments or {})

    def _submit(
        self,
        kernel: Kernel,
        correlation: int,
        stream: int,
        meeting: Meeting | None,
        arguments: dict[str, Any],
        gap_ns: int | None = None,
    ) -> Activity:
        rank = self.rank
        work_ns = kernel.work_ns
        if kernel.category == "kernel":
            work_ns = rank.vary(kernel.name, work_ns * rank.compute_scale)
        activity = Activity(
            kernel.category,
            kernel.name,
            work_ns,
            stream,
            {
                **({"External id": self.externals[-1]} if self.externals else {}),
                **describe(kernel, rank.machine.gpu.multiprocessors),
                **arguments,
            },
            meeting,
            gap_ns,
            correlation,
            step=rank.step,
        )
        latency_ns = rank.vary("launch latency", rank.costs.launch_latency_ns)
        rank.device.submit(activity, visible_ns=self.now + latency_ns)
        return activity

    def graph(self, kernels: Sequence[Kernel]) -> Steps:
        """Launch a captured graph: one call, many kernels."""
        correlation = self.rank.next_correlation()
        yield from self.runtime("cudaGraphLaunch", self.rank.costs.graph_launch_ns, correlation)
        for kernel in kernels:
            graph = {"graph node id": correlation}
            gap_ns = self.rank.costs.graph_kernel_gap_ns
            self._submit(kernel, correlation, COMPUTE_STREAM, None, graph, gap_ns)

    def record_event(self, stream: int) -> Returning[tuple[Signal, int, int]]:
        """``cudaEventRecord``; returns the event and the correlation of the call."""
        correlation = self.rank.next_correlation()
        yield from self.runtime("cudaEventRecord", self.rank.costs.event_call_ns, correlation)
        return self.rank.device.record(stream, visible_ns=self.now + 1_000), correlation, stream

    def wait_event(self, stream: int, event: tuple[Signal, int, int]) -> Steps:
        """``cudaStreamWaitEvent``."""
        signal, recorded, recorded_on = event
        correlation = self.rank.next_correlation()
        start_ns = self.now
        yield from self.runtime("cudaStreamWaitEvent", self.rank.costs.event_call_ns, correlation)
        self.rank.device.wait(stream, signal, visible_ns=self.now + 1_000)
        self._sync_span("Stream Wait Event", stream, start_ns, correlation, recorded, recorded_on)

    def synchronize(self, name: str = "cudaStreamSynchronize", stream: int | None = COMPUTE_STREAM) -> Steps:
        """Wait until a stream, or with None the device, has run all that was submitted."""
        correlation = self.rank.next_correlation()
        start_ns = self.now
        with self._runtime_span(name, correlation):
            yield 1_500
            for activity in self.rank.device.last_of(stream):
                yield activity.done
            yield self.rank.vary(name, self.rank.costs.sync_return_ns)
        kind = "Stream Sync" if stream is not None else "Context Sync"
        self._sync_span(kind, -1 if stream is None else stream, start_ns, correlation)

    def _sync_span(
        self, kind: str, stream: int, start_ns: int, correlation: int, recorded: int = 0, recorded_on: int = 0
    ) -> None:
        arguments: dict[str, Any] = {"cuda_sync_kind": kind}
        if kind == "Stream Wait Event":
            arguments |= {
                "wait_on_stream": recorded_on,
                "wait_on_cuda_event_record_corr_id": recorded,
                "wait_on_cuda_event_id": recorded % 64,
            }
        span = SyncSpan(kind, stream, start_ns + 400, max(self.now - 200, start_ns + 500), correlation, arguments)
        self.rank.syncs.append(span)


CALLBACK_IDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventRecord": 135,
    "cudaEventSynchronize": 137,
    "cudaStreamWaitEvent": 147,
    "cudaGraphLaunch": 311,
    "cuLaunchKernel": 307,
    "cudaMalloc": 20,
    "cudaFree": 22,
    "cudaHostAlloc": 27,
}


def describe(kernel: Kernel, multiprocessors: int) -> dict[str, Any]:
    """The arguments that CUPTI gives for what runs."""
    if kernel.category != "kernel":
        moved = kernel.bytes or 0
        return {"bytes": moved, "memory bandwidth (GB/s)": round(moved / max(kernel.work_ns, 1), 6)}
    blocks = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    warps = -(-kernel.block[0] * kernel.block[1] * kernel.block[2] // 32)
    return {
        "queued": 0,
        "registers per thread": kernel.registers,
        "shared memory": kernel.shared_bytes,
        "blocks per SM": round(blocks / multiprocessors, 6),
        "warps per SM": round(blocks * warps / multiprocessors, 6),
        "grid": list(kernel.grid),
        "block": list(kernel.block),
        "est. achieved occupancy %": min(100, round(100 * blocks * warps / multiprocessors / 64)),
    }


@contextmanager
def _nothing() -> Iterator[None]:
    yield
