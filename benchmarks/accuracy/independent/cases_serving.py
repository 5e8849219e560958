# ruff: noqa: ARG001, ARG005, D103, RUF005, E501 - a case is a function that registers itself; its text is in the decorator
"""Cases of episodes and of serving, and healthy jobs on one device."""

from __future__ import annotations

import random

from .cases_host import one
from .layers import EW, flash, gemm, norm, stream_us
from .loops import case, cnn, loop, step, transformer
from .ops import backward, forward, item, load, optimizer, to_device
from .program import Prog


@case("episodic.checkpoint", "torch.save every tenth step: DtoH of all weights, 0.6 s in serialization")
def checkpoint_save(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True)
    layers = transformer(p.device, 5)

    def body(i: int) -> None:
        step(p, layers)
        if on and i % 8 == 5:
            with (
                p.py("train.py(140): save_checkpoint"),
                p.py("torch/serialization.py(944): save"),
                p.py("torch/serialization.py(1215): _save"),
            ):
                for _ in range(20):
                    p.copy("DtoH (Device -> Pageable)", 2e7, speed=4)
                    p.sync("Stream")
                    p.wait(2.5e4)

    loop(p, body, 16)
    return [p]


@case("episodic.logging", "every third step 90 ms in tensorboard's writer, with stack", first=2)
def logging_tb(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("4090", seed, stack=True)
    layers = transformer(p.device, 3, 4, 512)

    def body(i: int) -> None:
        step(p, layers)
        if on and i % 3 == 2:
            with p.py("train.py(151): log_metrics"), p.py("torch/utils/tensorboard/writer.py(354): add_scalar"):
                item(p)
                with (
                    p.py("tensorboard/summary/writer/event_file_writer.py(117): add_event"),
                    p.py("<built-in method write of _io.BufferedWriter>"),
                ):
                    p.wait(9e4)

    loop(p, body, 14)
    return [p]


@case("episodic.evaluation", "step 6 runs 12 forwards without gradient (validate), 3 times a usual step")
def evaluation_burst(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, stack=True)
    layers = transformer(p.device, 6)

    def body(i: int) -> None:
        step(p, layers)
        if on and i % 8 == 5:
            with p.py("train.py(160): validate"), p.py("torch/utils/_contextlib.py(115): decorate_context"):
                for _ in range(12):
                    load(p, 100)
                    forward(p, layers, grad=False)
                    item(p)

    loop(p, body, 16)
    return [p]


@case("device.throttled", "same kernels 35 % slower from the middle of the recording on")
def throttled(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("4090", seed)
    layers = transformer(p.device, 4, 4)

    def body(i: int) -> None:
        p.scale = 1.35 if on and i >= 8 else 1.0
        step(p, layers)

    loop(p, body, 16)
    return [p]


@case(
    "host.warm-up capture.perturbed host.recompile",
    "the first step holds module loading: the first launch of each kernel takes 14 ms",
    "planted",
    0,
)
def warm_up_steps(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = cnn(p.device, 64)

    def body(i: int) -> None:
        p.first_launch = 14000.0 if on and i == 0 else 0.0
        step(p, layers, name="SGD")

    loop(p, body, 6)
    return [p]


def _decode(p: Prog, h: int, layers: int, b: int = 32) -> None:
    d, w = p.device, 2.0
    for _ in range(layers):
        p.kernel("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", 2.2, b, 1024)
        p.kernel(gemm(d, b, 3 * h, h, "bf16")[0], stream_us(d, 3 * h * h * w), 144, 128)
        p.kernel("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", 2.0, b, 512)
        p.kernel("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>", 1.8, b, 512)
        p.kernel("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>", 9, b * 8, 128)
        p.kernel(gemm(d, b, h, h, "bf16")[0], stream_us(d, h * h * w), 64, 128)
        p.kernel("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", 2.2, b, 1024)
        p.kernel(gemm(d, b, 8 * h, h, "bf16")[0], stream_us(d, 8 * h * h * w), 264, 128)
        p.kernel("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>", 2.6, b, 1024)
        p.kernel(gemm(d, b, h, 4 * h, "bf16")[0], stream_us(d, 4 * h * h * w), 64, 128)


@case(
    "inference.host-bound-decode host.launch-bound host.small-operators",
    "eager decode of a small model: kernels of 3-10 us, the host cannot keep up",
    "no rule",
)
def decode_eager(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, host=0.8)

    def body(i: int) -> None:
        if on:
            for _ in range(24):
                for op in ("vllm::unified_attention", "aten::mm", "_C::fused_add_rms_norm"):
                    with p.op(op, [[32, 1024]]):
                        p.cpu(40)
                _decode(p, 1024, 1)
        else:
            p.graph = []
            _decode(p, 1024, 24)
            ops, p.graph = p.graph, None
            p.replay(ops)
        p.cpu(150)
        item(p)

    loop(p, body, 12, "execute_context_0(0)_generation_32(32)")
    return [p]


@case(
    "inference.sampling-sync host.sync host.python inference.host-bound-decode",
    "graph decode, then logits to the host, 6 ms of Python sampling, then the next graph",
    "no rule",
)
def decode_sampling(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("B200", seed, stack=True)

    def body(i: int) -> None:
        p.graph = []
        _decode(p, 4096, 24)
        ops, p.graph = p.graph, None
        with p.py("vllm/v1/worker/gpu_model_runner.py(2450): execute_model"):
            p.replay(ops)
        with p.py("sampler.py(88): sample"):
            item(p, 32 * 128256 * 4)
            with p.py("sampler.py(120): top_p_numpy"):
                p.wait(6000 if on else 60)

    loop(p, body, 14, "execute_context_0(0)_generation_32(32)")
    return [p]


@case(
    "inference.prefill-interference",
    "every fifth decode step runs a prefill of 8k tokens first: those steps take 6 times as long",
    "no rule",
    0,
)
def decode_prefill(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed)
    pre = transformer(p.device, 16, 1, 8192, 4096)

    def body(i: int) -> None:
        if on and i % 5 == 3:
            forward(p, pre, grad=False)
        p.graph = []
        _decode(p, 4096, 16)
        ops, p.graph = p.graph, None
        p.replay(ops)
        p.cpu(100)
        item(p, 128)

    loop(
        p,
        body,
        20,
        lambda i: f"execute_context_{int(on and i % 5 == 3)}({8192 * int(on and i % 5 == 3)})_generation_32(32)",
    )
    return [p]


@case(
    "inference.bandwidth-bound-decode",
    "graph decode of large weights at batch 32: kernels read weights at 80 % of the bandwidth, no gaps",
    "limit",
)
def decode_bandwidth(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed)
    d = p.device

    def body(i: int) -> None:
        for _ in range(10):
            for n, k in ((12288, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
                with p.op("aten::linear", [[32, k], [n, k], []]), p.op("aten::mm", [[32, k], [k, n]]):
                    p.cpu(6)
                    p.kernel(gemm(d, 32, n, k, "bf16")[0], stream_us(d, 2.0 * n * k * (1 if on else 0.5)), 128, 256)
        p.cpu(100)

    loop(p, body, 12)
    return [p]


@case(
    "memory.offload-thrash",
    "optimizer state goes to the device and back each step: 2 x 0.4 GB pinned, device waits",
    "no rule",
)
def offload(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = transformer(p.device, 5)

    def body(i: int) -> None:
        load(p, 100)
        backward(p, layers, forward(p, layers))
        if on:
            to_device(p, 4e8)
        optimizer(p, layers)
        if on:
            with p.op("aten::to"), p.op("aten::_to_copy"), p.op("aten::copy_"):
                p.copy("DtoH (Device -> Pinned)", 4e8)

    loop(p, body)
    return [p]


@case(
    "input.synchronous-loader input.collate",
    "default_collate of 25 ms in the single-process loader on the main thread, with stack",
)
def collate_stack(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("L4", seed, stack=True)
    layers = transformer(p.device, 3, 2, 512)

    def body(i: int) -> None:
        with (
            p.py("torch/utils/data/dataloader.py(732): __next__"),
            p.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
            p.py("torch/utils/data/_utils/collate.py(398): default_collate"),
        ):
            p.wait(2.5e4 if on else 40)
        to_device(p, 4e6)
        step(p, layers, skip_load=True)

    loop(p, body)
    return [p]


@case("", "compiled transformer, bf16, fused optimizer: the device is busy", "healthy")
def healthy_transformer(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one(r.choice(["A100", "H100"]), seed)
    layers = transformer(p.device, 6, 8, 1024, 2048)
    loop(p, lambda i: step(p, layers))
    return [p]


@case(
    "",
    "reads the loss by item() at the end of each step, but loader and launches are quick: the device waits 1-2 % at most",
    "healthy",
)
def healthy_item_end(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, host=0.5)
    layers = transformer(p.device, 6, 8, 1024, 2048)
    loop(p, lambda i: step(p, layers, next_us=60, read=on))
    return [p]


@case("", "8 ms in __next__ each step, all hidden behind queued work", "healthy")
def healthy_hidden_loader(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True)
    layers = transformer(p.device, 6, 8, 1024, 2048)
    loop(p, lambda i: step(p, layers, next_us=8000 if on else 60))
    return [p]


@case("", "step time varies 15 % (lengths differ), no waste", "healthy")
def healthy_variance(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, noise=0.1)

    def body(i: int) -> None:
        step(p, transformer(p.device, 6, 8, 1024 + 128 * p.rng.randint(-2, 2), 2048))

    loop(p, body, 12)
    return [p]


@case("", "diffusion UNet by CUDA graph: 60 kernels a replay, no gaps", "healthy")
def healthy_unet_graph(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, shapes=False)
    layers = cnn(p.device, 8, blocks=8) + [
        flash(p.device, 8, 8, 4096, 64, "fp16"),
        norm(p.device, [8, 4096, 512], "fp16"),
    ]

    p.graph = []
    forward(p, layers, grad=False)
    ops, p.graph = p.graph, None
    p.code.clear()

    def body(i: int) -> None:
        p.replay(ops)
        p.kernel(EW % ("ddim_functor", 3), 12, 512, 128)
        p.cpu(40)

    loop(p, body, 12)
    return [p]


@case("", "three steps only; the first holds compilation of 0.4 s, the others are fine", "healthy")
def healthy_compile_first(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed)
    layers = transformer(p.device, 6, 8, 1024, 2048)

    def body(i: int) -> None:
        if i == 0:
            with p.note("_compile.compile_inner (dynamo_timed)"):
                p.wait(4e5)
        step(p, layers)

    loop(p, body, 5)
    return [p]


@case("", "200 MB of pinned batch per step on a copy stream, hidden", "healthy")
def healthy_copy_stream(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = transformer(p.device, 6, 8, 1024, 2048)

    def body(i: int) -> None:
        p.stream = 24
        load(p, 90, size=2e8 if on else 1e5)
        p.stream = 7
        step(p, layers, skip_load=True)

    loop(p, body)
    return [p]
