"""A server's engine: a scheduler in Python, a marked forward pass, sampling, and what is done with the tokens."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.accuracy.simulator import kernels
from benchmarks.accuracy.simulator.collectives import Meetings, metadata
from benchmarks.accuracy.simulator.engine import Steps
from benchmarks.accuracy.simulator.host import COMPUTE_STREAM
from benchmarks.accuracy.simulator.machine import BYTES_PER_ELEMENT
from benchmarks.accuracy.simulator.operators import Kernel, Operator, Sync, Tensor, leaf, to_device
from benchmarks.accuracy.simulator.training import Training, kernels_of
from benchmarks.accuracy.simulator.transformer import Builder, Stage

_TOKENS_AS_GRAPH = 512
"""Steps of more tokens are not captured, as engines have it."""


@dataclass(slots=True)
class Serving(Training):
    """One rank's engine loop. No step is marked but by the engine's mark around the forward pass."""

    meetings: Meetings
    by_turn: dict[str, list[Stage]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Build the layers for each kind of step."""
        Training.__post_init__(self)
        for turn in {*self.job.requests.turns} - {"idle"}:
            model = replace(self.job.transformer, batch=1, sequence=self._tokens(turn))
            # Attention of a decoding step reads the cache: its kernel is that of a short prompt.
            self.by_turn[turn] = [
                stage for stage in Builder(self.rank.machine.gpu, model).stages() if "CrossEntropy" not in stage.module
            ]

    def _tokens(self, turn: str) -> int:
        asked = self.job.requests
        return {"decode": asked.sequences, "prefill": asked.prompt, "mixed": asked.prompt + asked.sequences}[turn]

    def run(self) -> Steps:
        """The engine's loop."""
        with self.main.frame("engine/core.py(310): run_busy_loop"):
            for step in range(self.job.steps):
                self.rank.step = step
                self._throttle(step)
                yield from self._step(step)
            yield from self.main.synchronize("cudaDeviceSynchronize", None)

    def _mark(self, turn: str) -> str:
        asked = self.job.requests
        prompts, tokens = (0, 0) if turn == "decode" else (1, asked.prompt)
        decoded = 0 if turn == "prefill" else asked.sequences
        if asked.marks == "vllm":
            return f"execute_context_{prompts}({tokens})_generation_{decoded}({decoded})"
        if turn == "prefill":
            return f"step[EXTEND bs={prompts} toks={tokens}]"
        return f"step[{turn.upper()} bs={decoded + prompts}]"

    def _step(self, step: int) -> Steps:
        asked, main, host = self.job.requests, self.main, self.job.host
        turn = asked.turns[step % len(asked.turns)]
        if turn == "idle":
            with main.frame("engine/core.py(290): wait_for_requests"), main.frame("queue.py(180): get"):
                yield asked.pause_ns
            return
        with main.frame("scheduler.py(205): schedule"):
            yield from main.work(host.per_step_ns / 2 + host.slow_python_ns, "scheduler")
        positions = Tensor((self._tokens(turn),), "int64")
        yield from main.operator(to_device(positions, "Memcpy HtoD (Pinned -> Device)", 1_600, waits=False))
        with main.span("user_annotation", self._mark(turn)), main.frame("model_runner.py(950): forward"):
            yield from self._pass(turn)
        yield from self._sample(turn)
        with main.frame("output_processor.py(88): process_outputs"):
            yield from main.work(host.per_step_ns / 2, "scheduler")
        yield from self._after(step)

    def _pass(self, turn: str) -> Steps:
        stages, main = self.by_turn[turn], self.main
        exchange = self.job.requests.exchange
        if self.job.graphs and self._tokens(turn) <= _TOKENS_AS_GRAPH and not exchange:
            with main.frame("torch/cuda/graphs.py(140): replay"):
                yield from main.graph([*kernels_of(op for stage in stages for op in stage.forward)])
            return
        for stage in stages:
            yield from main.work(self.job.host.between_stages_ns, "module call")
            yield from self._stage_forward(main, stage)
            name = stage.module.rpartition("/")[2]
            if exchange and stage.block.startswith("Block_") and name.startswith("Linear_") and self._closes(name):
                yield from self._exchange(turn)

    @staticmethod
    def _closes(name: str) -> bool:
        """Whether a linear layer is the last one of attention or of the MLP: what ranks have parts of is summed."""
        return int(name.rpartition("_")[2]) % 4 in (1, 3)

    def _exchange(self, turn: str) -> Steps:
        """A blocking all-reduce on compute's own stream, as engines have it."""
        model, rank = self.job.transformer, self.rank.rank
        elements = self._tokens(turn) * model.hidden
        meeting = self.meetings.next("0", rank, "allreduce", elements * BYTES_PER_ELEMENT[model.dtype])
        said = metadata("allreduce", elements, model.dtype, list(range(self.job.parallel.ranks)))
        inputs: dict[str, Any] = {"Input Dims": [[elements]], "Input type": [kernels.host_type(model.dtype)]}
        with self.main.span("cpu_op", "vllm::all_reduce", **inputs):
            yield from self.main.work(5_000, "all_reduce")
            kernel = kernels.communication("allreduce", model.dtype)
            yield from self.main.launch(kernel, stream=COMPUTE_STREAM, meeting=meeting, arguments=said)

    def _sample(self, turn: str) -> Steps:
        """From scores to tokens that the host has."""
        asked, model, gpu, main = self.job.requests, self.job.transformer, self.rank.machine.gpu, self.main
        rows = asked.sequences if turn != "prefill" else 1
        scores = Tensor((rows, model.vocabulary), "fp32")

        def over(name: str, functor: str, tensors: int = 2) -> Operator:
            kernel = kernels.elementwise(gpu, functor, scores.elements, "fp32", tensors=tensors)
            return leaf(f"aten::{name}", (scores,) * (tensors - 1), kernel)

        soft = leaf("aten::_softmax", (scores, None, None), kernels.softmax(gpu, scores.elements, "fp32"))
        with main.frame("sampler.py(60): forward"), nullcontext():
            parts: tuple[Operator, ...]
            if asked.sampling == "unfused":
                sort = Kernel(
                    "void at::native::radixSortKVInPlace<-2, -1, 128, 32, float, long, unsigned int>",
                    gpu.memory_ns(6 * scores.bytes),
                    (rows, 1, 1),
                )
                parts = (
                    over("div", "DivFunctor"),
                    leaf("aten::sort", (scores, None, None), sort),
                    soft,
                    leaf("aten::cumsum", (scores, None), kernels.reduction(gpu, "CumSum", 2 * scores.elements, "fp32")),
                    over("sub", "CUDAFunctor_add", 3),
                    over("gt", "CompareGTFunctor"),
                    over("masked_fill_", "masked_fill_kernel", 3),
                    over("scatter", "scatter_kernel", 3),
                    soft,
                    over("div", "DivFunctor", 3),
                )
            else:
                fused = Kernel(
                    "_topk_topp_sampling_kernel",
                    gpu.memory_ns(scores.bytes * 2),
                    (rows, 1, 1),
                    call="cuLaunchKernel",
                )
                parts = (leaf("aten::empty", (scores,), fused),)
            for operator in parts:
                yield from main.operator(operator)
            if asked.sampling == "host":
                whole = round(1_500 + scores.bytes / gpu.pcie_pageable * 1e9)
                yield from main.operator(to_device(scores, "Memcpy DtoH (Device -> Pageable)", whole, waits=True))
                with main.frame("sampler.py(118): top_p_numpy"):
                    yield from main.work(asked.sampling_ns, "sampling")
            arg = kernels.reduction(gpu, "ArgMaxOps", scores.elements, "fp32")
            yield from main.operator(leaf("aten::argmax", (scores, None), arg))
            copy = Kernel("Memcpy DtoH (Device -> Pinned)", 1_500, category="gpu_memcpy", bytes=8 * rows)
            yield from main.operator(Operator("aten::copy_", (Tensor((rows,), "int64"),) * 2, (copy, Sync()), 2_000))
