"""The training loop of one rank, as a script would run it: batch, copy, forward, backward, optimizer, extras."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from benchmarks.accuracy.simulator import kernels
from benchmarks.accuracy.simulator.engine import Returning, Steps
from benchmarks.accuracy.simulator.host import Rank, Thread
from benchmarks.accuracy.simulator.job import Job
from benchmarks.accuracy.simulator.kineto import MAIN_THREAD
from benchmarks.accuracy.simulator.loader import Supply
from benchmarks.accuracy.simulator.operators import Call, Kernel, Operator, Tensor, item, leaf, to_device, wrap
from benchmarks.accuracy.simulator.optimizers import optimizer_operators
from benchmarks.accuracy.simulator.strategy import Strategy
from benchmarks.accuracy.simulator.transformer import Builder, Stage, Transformer

BACKWARD_THREAD = MAIN_THREAD + 57


@dataclass(slots=True)
class Training:
    """One rank's script."""

    job: Job
    rank: Rank
    strategy: Strategy
    main: Thread = field(init=False)
    autograd: Thread = field(init=False)
    supply: Supply = field(init=False)
    stages: list[Stage] = field(init=False)
    optimizer: tuple[Operator, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.main = Thread(self.rank, MAIN_THREAD)
        self.main.stacks = self.job.stacks
        self.autograd = Thread(self.rank, BACKWARD_THREAD)
        self.supply = Supply(self.rank, self.job.loader)
        gpu = self.rank.machine.gpu
        model = self.job.model
        self.stages = Builder(gpu, model).stages() if isinstance(model, Transformer) else model.stages(gpu)
        self._choose_optimizer()

    def _choose_optimizer(self) -> None:
        shapes = [shape for stage in reversed(self.stages) for shape in stage.parameters]
        gpu, dtype = self.rank.machine.gpu, self.job.model.dtype
        self.optimizer = optimizer_operators(gpu, self.job.optimizer, shapes, dtype)

    def run(self) -> Steps:
        """The whole script."""
        with self.main.frame("train.py(210): <module>"), self.main.frame("train.py(160): main"):
            for step in range(self.job.steps):
                self.rank.step = step
                self._throttle(step)
                with self.main.span("user_annotation", f"ProfilerStep#{step}"):
                    yield from self._step(step)
            yield from self.main.synchronize("cudaDeviceSynchronize", None)

    def _throttle(self, step: int) -> None:
        for first, scale in self.job.throttled:
            if step >= first:
                self.rank.compute_scale = scale

    def _step(self, step: int) -> Steps:
        host, main = self.job.host, self.main
        yield from self.supply.take(main, step)
        yield from self._copy_batch()
        if host.slow_python_ns:
            with main.frame("train.py(71): build_targets"):
                yield from main.work(host.slow_python_ns, "slow python")
        yield from self._traced()
        yield from main.work(host.per_step_ns / 2, "loop")
        if self.job.graphs:
            yield from self._replay()
        else:
            yield from self._eager()
        yield from main.work(host.per_step_ns / 2, "loop")
        yield from self._after(step)

    def _traced(self) -> Steps:
        """Calls that the profiler follows: each is short, and what it costs to follow it lies in between."""
        host, main = self.job.host, self.main
        with main.frame("train.py(75): look_up"):
            for _ in range(host.traced_calls):
                yield from main.work(0.9 * host.traced_ns, "followed")
                with main.frame("<built-in method get of dict object at 0x7f3a5c0>"):
                    yield from main.work(0.1 * host.traced_ns, "call")

    def _replay(self) -> Steps:
        """The whole step was captured into one graph."""
        with self.main.frame("torch/cuda/graphs.py(140): replay"):
            yield from self.main.work(4_000, "replay")
            yield from self.main.graph(
                [
                    *kernels_of(operator for stage in self.stages for operator in stage.forward),
                    *kernels_of(operator for stage in reversed(self.stages) for _, operator in stage.backward),
                    *kernels_of(self.optimizer),
                ]
            )
        yield from self._items(self.job.host.items_per_step)

    def _eager(self) -> Steps:
        main, count = self.main, self.job.accumulate
        for number in range(count):
            sequences = yield from self._forward()
            yield from self._backward(sequences, last=number == count - 1)
            yield from self.strategy.finish(main)
        yield from self._optimize(main)

    def _optimize(self, main: Thread) -> Steps:
        with (
            main.frame("torch/optim/optimizer.py(480): wrapper"),
            main.span("user_annotation", "Optimizer.step#AdamW.step"),
        ):
            yield from main.work(30_000, "optimizer loop")
            for operator in self.optimizer:
                yield from main.operator(operator)
                yield from main.work(1_500, "optimizer python")
        with main.span("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad"):
            yield from main.work(18_000, "zero grad")

    def _copy_batch(self) -> Steps:
        copies, gpu = self.job.copies, self.rank.machine.gpu
        rate = gpu.pcie_pinned if copies.pinned else gpu.pcie_pageable
        name = f"Memcpy HtoD ({'Pinned' if copies.pinned else 'Pageable'} -> Device)"
        duration_ns = 1_500 + round(copies.bytes / rate * 1e9)
        tokens = Tensor((copies.bytes // 8,), "int64")
        with self.main.frame("train.py(66): to_device"):
            yield from self.main.operator(to_device(tokens, name, duration_ns, waits=not copies.pinned))

    def _forward(self) -> Returning[list[list[int]]]:
        sequences: list[list[int]] = []
        main, host, wrapper = self.main, self.job.host, self.strategy.forward
        with main.frame("train.py(80): forward"), main.span("user_annotation", wrapper) if wrapper else nullcontext():
            if self.job.double_forward:
                yield from self._stages(sequences)
                sequences.clear()
            yield from self._stages(sequences)
        if host.items_per_step:
            yield from self._items(host.items_per_step)
        return sequences

    def _stages(self, sequences: list[list[int]]) -> Steps:
        main, host = self.main, self.job.host
        every = host.items_every
        for index, (stage, begins, ends) in enumerate(_blocks(self.stages)):
            if begins:
                yield from self.strategy.before_forward(main, stage.block)
            yield from main.work(host.between_stages_ns, "module call")
            sequences.append((yield from self._stage_forward(main, stage)))
            yield from self._allocate(index)
            if every and index % every == every - 1:
                yield from self._items(1)
            if ends:
                yield from self.strategy.after_forward(main, stage.block)

    def _stage_forward(self, thread: Thread, stage: Stage) -> Returning[list[int]]:
        numbers = []
        with thread.frame("nn.Module: " + stage.module.rpartition("/")[2], **{"Python module id": 0}):
            for operator in stage.forward:
                yield from thread.operator(operator)
                numbers.append(thread.last_sequence())
        return numbers

    def _allocate(self, index: int) -> Steps:
        host = self.job.host
        early = host.allocation_steps is None or self.rank.step < host.allocation_steps
        if early and index < host.allocations_per_step:
            with self.main.span("cpu_op", "aten::empty", **wrap("", (None,) * 6).arguments()):
                yield from self.main.work(600, "empty")
                if host.frees_too:
                    yield from self.main.call(Call("cudaFree", host.allocation_ns // 2, locks=True, drains=True))
                yield from self.main.call(Call("cudaMalloc", host.allocation_ns, locks=True))

    def _items(self, count: int) -> Steps:
        with self.main.frame("train.py(92): read_loss"):
            for _ in range(count):
                yield from self.main.operator(item())

    def _backward(self, sequences: list[list[int]], *, last: bool) -> Steps:
        main = self.main
        self.strategy.begin(last=last)
        with main.frame("torch/_tensor.py(592): backward"), main.frame("torch/autograd/__init__.py(243): backward"):
            yield from main.work(25_000, "enter autograd")
            one = leaf(
                "aten::ones_like",
                (Tensor((), "fp32"),),
                kernels.elementwise(self.rank.machine.gpu, "FillFunctor", 1, "fp32", tensors=1),
            )
            yield from main.operator(one)
            yield self.rank.clock.spawn(self._autograd(sequences))
            yield from main.work(12_000, "leave autograd")

    def _autograd(self, sequences: list[list[int]]) -> Steps:
        thread = self.autograd
        yield from thread.work(8_000, "hand over")
        backwards = list(zip(_blocks(self.stages), sequences, strict=True))[::-1]
        for (stage, begins, ends), numbers in backwards:
            if ends:
                yield from self.strategy.before_backward(thread, stage.block)
                yield from self._recompute(stage.block)
            for name, operator in stage.backward:
                number = None if name.startswith("torch::") else numbers[-1]
                yield from thread.operator(operator, sequence=number)
                yield from thread.work(500, "engine")
            for shape in stage.parameters:
                yield from self.strategy.gradient(thread, shape)
            if begins:
                yield from self.strategy.after_backward(thread, stage.block)

    def _recompute(self, block: str) -> Steps:
        """Activation checkpointing: the block's forward pass again, inside its backward pass."""
        if not self.job.recompute or not block.startswith("Block_"):
            return
        thread = self.autograd
        with (
            thread.span("cpu_op", "autograd::engine::evaluate_function: CheckpointFunctionBackward"),
            thread.span("cpu_op", "CheckpointFunctionBackward"),
        ):
            yield from thread.work(20_000, "checkpoint")
            for stage in self.stages:
                if stage.block == block:
                    yield from thread.work(self.job.host.between_stages_ns, "module call")
                    yield from self._stage_forward(thread, stage)

    def _after(self, step: int) -> Steps:
        host, main = self.job.host, self.main
        for _ in range(host.syncs_at_end):
            yield from main.synchronize("cudaDeviceSynchronize", None)
        if host.reads_every and step % host.reads_every == host.reads_every - 1:
            yield from self._items(1)
        turn = self.rank.rank if host.gc_apart else -1
        if host.gc_every and step % host.gc_every == turn % host.gc_every:
            with main.collection():
                yield from main.work(host.gc_ns, "gc")
        if host.every and step % host.every == host.every - 1:
            yield from self._episode()

    def _episode(self) -> Steps:
        host, main = self.job.host, self.main
        if host.pause == "checkpoint":
            yield from self._checkpoint()
        elif host.pause == "logging":
            with (
                main.frame("train.py(130): log_metrics"),
                main.frame("torch/utils/tensorboard/writer.py(350): add_scalar"),
                main.frame("<built-in method fsync>"),
            ):
                yield from main.work(host.pause_ns, "logging")
        else:
            yield from self._evaluate()

    def _checkpoint(self) -> Steps:
        host, main, gpu = self.job.host, self.main, self.rank.machine.gpu
        with main.frame("train.py(120): save_checkpoint"), main.frame("torch/serialization.py(950): save"):
            for shape in self.job.model.parameters():
                tensor = Tensor(shape, self.job.model.dtype)
                duration_ns = 1_500 + round(tensor.bytes / gpu.pcie_pageable * 1e9)
                yield from main.operator(to_device(tensor, "Memcpy DtoH (Device -> Pageable)", duration_ns, waits=True))
            with main.frame("<built-in method write_record of torch._C.PyTorchFileWriter>"):
                yield from main.work(host.pause_ns, "write")

    def _evaluate(self) -> Steps:
        host, main = self.job.host, self.main
        with main.frame("train.py(140): evaluate"), main.span("user_annotation", "evaluate"):
            for _ in range(max(1, host.pause_ns)):
                for stage in self.stages:
                    yield from main.work(host.between_stages_ns, "module call")
                    for operator in stage.forward:
                        yield from main.operator(operator)
            yield from self._items(1)


def kernels_of(operators: Iterable[Operator]) -> Iterator[Kernel]:
    """What operators launch, in order."""
    for operator in operators:
        for part in operator.body:
            if isinstance(part, Kernel):
                yield part
            elif isinstance(part, Operator):
                yield from kernels_of([part])


def _blocks(stages: Sequence[Stage]) -> Iterator[tuple[Stage, bool, bool]]:
    """Every stage, and whether it is the first and the last of its block."""
    for before, stage, after in zip([None, *stages], stages, [*stages[1:], None], strict=False):
        yield stage, before is None or before.block != stage.block, after is None or after.block != stage.block
