"""Data-parallel training: DDP's buckets, FSDP's gathered and scattered blocks, and experts spread over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.accuracy.simulator import kernels
from benchmarks.accuracy.simulator.collectives import COMMUNICATION_STREAM, Event, Meetings, collective
from benchmarks.accuracy.simulator.engine import Returning, Steps
from benchmarks.accuracy.simulator.host import COMPUTE_STREAM, Rank, Thread
from benchmarks.accuracy.simulator.job import Job
from benchmarks.accuracy.simulator.machine import BYTES_PER_ELEMENT
from benchmarks.accuracy.simulator.operators import Operator, Tensor, leaf
from benchmarks.accuracy.simulator.strategy import Strategy


@dataclass(slots=True)
class DistributedDataParallel(Strategy):
    """Sums gradients in buckets, as they become ready or all at the end."""

    job: Job
    rank: int
    meetings: Meetings
    pending: list[Event] = field(default_factory=list)
    filled: int = 0
    buckets: list[int] = field(default_factory=list)
    quiet: bool = False
    forward: str = "DistributedDataParallel.forward"

    def begin(self, *, last: bool) -> None:
        """A backward pass begins; without the last one gradients stay where they are, unless told otherwise."""
        self.quiet = not last and not self.job.parallel.sync_every
        self.pending.clear()
        self.buckets.clear()
        self.filled = 0

    def gradient(self, thread: Thread, shape: tuple[int, ...]) -> Steps:
        """A gradient is ready; a full bucket is reduced."""
        self.filled += 0 if self.quiet else Tensor(shape).elements
        if self.quiet or self.filled * BYTES_PER_ELEMENT[self.job.model.dtype] < self.job.parallel.bucket_bytes:
            return
        elements, self.filled = self.filled, 0
        if self.job.parallel.overlap:
            yield from self._reduce(thread, elements)
        else:
            self.buckets.append(elements)

    def _reduce(self, thread: Thread, elements: int) -> Steps:
        dtype = self.job.model.dtype
        meeting = self.meetings.next("0", self.rank, "allreduce", elements * BYTES_PER_ELEMENT[dtype])
        ranks = list(range(self.job.parallel.ranks))
        self.pending.append((yield from collective(thread, "allreduce", elements, dtype, meeting, ranks)))

    def finish(self, thread: Thread) -> Steps:
        """Reduce what is left, let compute wait for all."""
        for elements in [*self.buckets, *([self.filled] if self.filled else [])]:
            yield from self._reduce(thread, elements)
        for event in self.pending:
            yield from thread.wait_event(COMPUTE_STREAM, event)


@dataclass(slots=True)
class FullyShardedDataParallel(Strategy):
    """Gathers a block's parameters before it runs, the next block's beforehand where ``prefetch`` is on."""

    job: Job
    rank: int
    meetings: Meetings
    blocks: Sequence[str]
    elements: int
    gathered: dict[tuple[str, bool], Event] = field(default_factory=dict)
    scattered: list[Event] = field(default_factory=list)

    def _gather(self, thread: Thread, block: str, *, forward: bool) -> Steps:
        if not block or (block, forward) in self.gathered:
            return
        self.gathered[block, forward] = yield from self._collective(thread, "_allgather_base", waits=False)

    def _collective(self, thread: Thread, name: str, *, waits: bool) -> Returning[Event]:
        dtype = self.job.model.dtype
        meeting = self.meetings.next("0", self.rank, name, self.elements * BYTES_PER_ELEMENT[dtype])
        ranks = list(range(self.job.parallel.ranks))
        started = collective(thread, name, self.elements, dtype, meeting, ranks, after_compute=waits)
        return (yield from started)

    def _neighbour(self, block: str, step: int) -> str:
        place = self.blocks.index(block) + step
        return self.blocks[place] if 0 <= place < len(self.blocks) else ""

    def before_forward(self, thread: Thread, block: str) -> Steps:
        """Wait for the block's parameters; ask for the next block's."""
        yield from self._need(thread, block, forward=True)

    def before_backward(self, thread: Thread, block: str) -> Steps:
        """Likewise, backwards."""
        yield from self._need(thread, block, forward=False)

    def _need(self, thread: Thread, block: str, *, forward: bool) -> Steps:
        if block not in self.blocks:
            return
        yield from self._gather(thread, block, forward=forward)
        if self.job.parallel.prefetch:
            yield from self._gather(thread, self._neighbour(block, 1 if forward else -1), forward=forward)
        yield from thread.wait_event(COMPUTE_STREAM, self.gathered[block, forward])
        if not self.job.parallel.prefetch:
            done = yield from thread.record_event(COMPUTE_STREAM)
            yield from thread.wait_event(COMMUNICATION_STREAM, done)

    def after_forward(self, thread: Thread, block: str) -> Steps:
        """Without prefetching the next gather waits for this block's compute."""
        if block in self.blocks and not self.job.parallel.prefetch:
            done = yield from thread.record_event(COMPUTE_STREAM)
            yield from thread.wait_event(COMMUNICATION_STREAM, done)

    def after_backward(self, thread: Thread, block: str) -> Steps:
        """Scatter the block's gradients."""
        if block in self.blocks:
            self.scattered.append((yield from self._collective(thread, "_reduce_scatter_base", waits=True)))

    def finish(self, thread: Thread) -> Steps:
        """The optimizer needs every shard."""
        for event in self.scattered:
            yield from thread.wait_event(COMPUTE_STREAM, event)
        self.scattered.clear()
        self.gathered.clear()


@dataclass(slots=True)
class ExpertParallel(Strategy):
    """After every block: tokens to their experts, the experts' products, tokens back; all in compute's way."""

    job: Job
    rank: Rank
    meetings: Meetings
    blocks: Sequence[str]

    def after_forward(self, thread: Thread, block: str) -> Steps:
        """Dispatch, experts, combine."""
        yield from self._experts(thread, block, products=2)

    def after_backward(self, thread: Thread, block: str) -> Steps:
        """The same with twice the products."""
        yield from self._experts(thread, block, products=4)

    def _experts(self, thread: Thread, block: str, *, products: int) -> Steps:
        if block not in self.blocks:
            return
        yield from self._exchange(thread)
        for operator in self._products(products):
            yield from thread.operator(operator)
        yield from self._exchange(thread)

    def _exchange(self, thread: Thread) -> Steps:
        model = self.job.transformer
        elements = model.tokens * model.hidden
        meeting = self.meetings.next("0", self.rank.rank, "all_to_allv", elements * BYTES_PER_ELEMENT[model.dtype])
        ranks = list(range(self.job.parallel.ranks))
        event = yield from collective(thread, "all_to_allv", elements, model.dtype, meeting, ranks)
        yield from thread.wait_event(COMPUTE_STREAM, event)

    def _products(self, count: int) -> list[Operator]:
        model, load = self.job.transformer, self.job.parallel.expert_load
        rows = round(model.tokens * (load[self.rank.rank] if load else 1.0))
        left, right = (
            Tensor((rows, model.hidden), model.dtype),
            Tensor((8, model.hidden, 2 * model.hidden), model.dtype),
        )
        kernel = kernels.grouped_matmul(self.rank.machine.gpu, rows, 2 * model.hidden, model.hidden, model.dtype)
        return [leaf("aten::_grouped_mm", (left, right, Tensor((8,), "int64")), kernel)] * count
