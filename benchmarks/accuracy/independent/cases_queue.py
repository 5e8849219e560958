# ruff: noqa: ARG001, ARG005, D103 - a case is a function that registers itself; its text is in the decorator
"""Cases of loops with a full launch queue, of recordings that lost events, of ranks in one file, and of servers."""

from __future__ import annotations

import random
from collections.abc import Callable

from .cases_host import one
from .cases_serving import _decode
from .layers import Layer, cast_layers, gemm, stream_us
from .loops import case, loop, ranks, step, transformer
from .ops import all_reduce, backward, forward, item, load, optimizer
from .program import Prog


def _body(p: Prog, net: list[Layer], every: int = 4, opt: str = "fused") -> Callable[[int], None]:
    """A step whose loss is read once in a while."""

    def body(i: int) -> None:
        step(p, net, opt=opt)
        if every and i % every == every - 1:
            with p.py("train.py(104): log"):
                item(p)

    return body


@case(
    "", "48 layers, 1,100 launches a step, read every fourth step: launches wait for room and cost nothing", "healthy"
)
def queue_healthy(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True, host=0.6)
    net = transformer(p.device, 48, 8, 1024, 1024, compiled=False)
    loop(p, _body(p, net))
    return [p]


@case("", "the same with 30 ms of Python a step under a queue that is full", "healthy")
def queue_hidden_python(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True, host=0.6)
    net = transformer(p.device, 48, 8, 1024, 1024, compiled=False)
    inner = _body(p, net, 0)

    def body(i: int) -> None:
        if on:
            with p.py("tokens.py(44): encode"):
                p.wait(30_000)
        inner(i)

    loop(p, body)
    return [p]


@case("compute.unfused-attention", "attention written out in 40 layers, full queue, read every fourth step")
def queue_attention(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, host=0.6)
    net = transformer(p.device, 40, 8, 1024, 1024, attention="math" if on else "flash", compiled=False)
    loop(p, _body(p, net))
    return [p]


@case("compute.fp32-matmul", "fp32 products that are not TensorFloat-32, full queue")
def queue_fp32(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, host=0.6)
    net = transformer(p.device, 36, 4, 1024, 1024, compiled=False, dtype="fp32" if on else "tf32")
    loop(p, _body(p, net))
    return [p]


@case("compute.cast-churn", "activations go to fp32 and back before each product, full queue, on ROCm")
def queue_casts_rocm(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("MI300X", seed, host=0.6)
    net = transformer(p.device, 40, 8, 2048, 1024, compiled=False)
    if on:
        net = cast_layers(p.device, net, [8, 2048, 4096])
    loop(p, _body(p, net))
    return [p]


@case(
    "communication.exposed communication.low-bandwidth",
    "gradients averaged after backward by hand, full queue, 2 ranks",
)
def queue_exposed(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 2, host=0.6)
    for p in out:
        net = transformer(p.device, 44, 6, 1024, 1024, compiled=False)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            load(p, 90)
            backward(p, net, forward(p, net))
            if on:
                for _ in range(8):
                    all_reduce(p, 1.2e8, [0, 1], 60)
                p.order(20, 7)
            optimizer(p, net)
            if i % 3 == 2:
                item(p)

        loop(p, body)
    return out


@case("episodic.logging", "250 ms in a logger every third step: longer than what is queued lasts")
def queue_logging(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True, host=0.6)
    net = transformer(p.device, 44, 8, 1024, 1024, compiled=False)
    inner = _body(p, net, 0)

    def body(i: int) -> None:
        inner(i)
        if on and i % 3 == 2:
            with p.py("train.py(120): log_images"), p.py("wandb/sdk/wandb_run.py(1720): log"):
                p.wait(250_000)

    loop(p, body, 12)
    return [p]


@case("", "whole buffers of the device's events are missing: it seems to idle", "healthy", lost="device")
def lost_buffers(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed)
    net = transformer(p.device, 8, 8, 1024, 2048, compiled=False)
    loop(p, lambda i: step(p, net, read=True), 10)
    return [p]


@case("", "half of the calls are missing: kernels without launches", "healthy", lost="calls")
def lost_calls(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("MI300X", seed, host=0.7)
    net = transformer(p.device, 8, 8, 1024, 2048, compiled=False)
    loop(p, lambda i: step(p, net, read=True), 10)
    return [p]


@case("", "two ranks; of each whole buffers of the device's events are missing", "healthy", lost="device")
def lost_buffers_ranks(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 2)
    for p in out:
        net = transformer(p.device, 8, 8, 1024, 2048, compiled=False)
        loop(p, lambda i, p=p, net=net: step(p, net, group=[0, 1]))  # type: ignore[misc]
    return out


@case(
    "",
    "graph replays whose kernels are missing: a few copies are all that the device seems to do",
    "healthy",
    lost="graphs",
)
def lost_graphs(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed)

    def body(i: int) -> None:
        p.graph = []
        _decode(p, 4096, 24)
        ops, p.graph = p.graph, None
        p.replay(ops)
        p.cpu(90)
        item(p, 128)

    loop(p, body, 16)
    return [p]


@case(
    "communication.straggler device.degraded", "rank 1 of 3 computes 40 % more slowly; all in one file", together=True
)
def one_file_straggler(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("H100", seed, 3)
    for p in out:
        net = transformer(p.device, 8, 8, 1024, 1024)
        p.scale = 1.4 if on and p.rank == 1 else 1.0
        loop(p, lambda i, p=p, net=net: step(p, net, group=[0, 1, 2]))  # type: ignore[misc]
    return out


@case("", "three healthy ranks in one file", "healthy", together=True)
def one_file_healthy(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("H100", seed, 3)
    for p in out:
        net = transformer(p.device, 8, 8, 1024, 2048)
        loop(p, lambda i, p=p, net=net: step(p, net, group=[0, 1, 2]))  # type: ignore[misc]
    return out


def _engine(
    p: Prog, steps: int, name: Callable[[int], str], body: Callable[[int], None], after: Callable[[int], None]
) -> None:
    """A server's loop: only the forward pass is marked."""
    for i in range(steps):
        p.marked_ops(i)
        with p.py("scheduler.py(1040): event_loop_normal"):
            p.cpu(60)
            with p.note(name(i)):
                body(i)
            after(i)
    p.marked_ops(steps)
    p.sync("Device")


@case("inference.host-bound-decode host.launch-bound host.small-operators", "SGLang's marks; decode without graphs")
def serve_decode_eager(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, host=0.8, stack=True)

    def body(i: int) -> None:
        if on:
            for _ in range(28):
                for op in ("aten::linear", "sgl_kernel::fused_add_rmsnorm", "aten::linear"):
                    with p.op(op, [[32, 1024]]):
                        p.cpu(30)
                _decode(p, 1024, 1)
        else:
            p.graph = []
            _decode(p, 1024, 28)
            ops, p.graph = p.graph, None
            p.replay(ops)

    def after(i: int) -> None:
        with p.py("sampler.py(44): forward"):
            item(p, 128)
        p.cpu(80)

    _engine(p, 14, lambda i: "step[DECODE bs=32]", body, after)
    return [p]


@case("", "SGLang's marks; prefill, decode by graph, and waits for requests that do not come", "healthy")
def serve_idle(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, stack=True)
    net = transformer(p.device, 12, 1, 4096, 4096)

    def name(i: int) -> str:
        return "step[EXTEND bs=1 toks=4096]" if i % 6 == 0 else "step[DECODE bs=16]"

    def body(i: int) -> None:
        if i % 6 == 0:
            forward(p, net, grad=False)
            return
        p.graph = []
        _decode(p, 4096, 24)
        ops, p.graph = p.graph, None
        p.replay(ops)

    def after(i: int) -> None:
        item(p, 128)
        p.cpu(60)
        if i % 6 == 5:
            with p.py("scheduler.py(1210): recv_requests"), p.py("zmq/sugar/socket.py(840): recv"):
                p.wait(25_000)

    _engine(p, 24, name, body, after)
    return [p]


@case("inference.sampling-sync host.python", "vLLM's marks; logits go to the host, Python draws the tokens")
def serve_sampling(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True)

    def body(i: int) -> None:
        p.graph = []
        _decode(p, 4096, 20)
        ops, p.graph = p.graph, None
        p.replay(ops)

    def after(i: int) -> None:
        with p.py("sampler.py(90): sample"):
            item(p, 64 * 128256 * 4 if on else 256)
            with p.py("logits_processor.py(31): penalties"):
                p.wait(5_000 if on else 40)
        p.cpu(70)

    _engine(p, 16, lambda i: "execute_context_0(0)_generation_64(64)", body, after)
    return [p]


@case("communication.exposed communication.low-bandwidth", "vLLM's marks; prefill of 2 tensor-parallel ranks over PCIe")
def serve_tensor_parallel(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("4090", seed, 2, host=0.6)
    for p in out:
        net = transformer(p.device, 16, 2, 2048, 4096, tp=2)

        def reduce(j: int, p: Prog = p) -> None:
            if on and j % 7 in (3, 6):
                all_reduce(p, 2 * 2048 * 4096 * 2, [0, 1], 11, stream=7)

        def body(i: int, p: Prog = p, net: list[Layer] = net, reduce: Callable[[int], None] = reduce) -> None:
            forward(p, net, reduce, grad=False)

        def after(i: int, p: Prog = p) -> None:
            p.kernel(gemm(p.device, 2, 32000, 4096, "bf16")[0], stream_us(p.device, 2.6e8), 250, 128)
            item(p, 64)
            p.cpu(90)

        _engine(p, 9, lambda i: "execute_context_2(4096)_generation_0(0)", body, after)
    return out
