# ruff: noqa: ARG001, ARG005, D103, UP031 - a case is a function that registers itself; its text is in the decorator
"""Cases of one device: input, host, allocator."""

from __future__ import annotations

import random

from .devices import DEVICES
from .layers import Layer, linear, pointwise, stream_us
from .loops import case, cnn, loop, step, transformer
from .ops import backward, forward, item, load, optimizer, to_device
from .program import Prog


def one(device: str, seed: int, **more: object) -> Prog:
    """A program of a job on one device."""
    return Prog(DEVICES[device], seed, **more)  # type: ignore[arg-type]


@case("input.synchronous-loader", "SingleProcess __next__ of 20-40 ms on the main thread in each step, device idle")
def loader_sync_v100_old(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("V100", seed, old=True, host=1.6)
    layers, us = cnn(p.device, 32), r.uniform(2e4, 4e4)
    loop(p, lambda i: step(p, layers, opt="foreach", name="SGD", next_us=us if on else 100, workers=False, read=True))
    return [p]


@case(
    "input.synchronous-loader host.python input.cpu-bound",
    "own iterator: Python frames of data.py/PIL hold the main "
    "thread, no loader annotation; could be called Python work as well",
)
def loader_own_iterator_stack(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True, noise=0.1)
    layers = transformer(p.device, 5)

    def body(i: int) -> None:
        with p.py("my_data.py(31): __iter__"):
            for _ in range(16):
                with p.py("my_data.py(58): __getitem__"), p.py("PIL/Image.py(2312): resize"):
                    p.wait(3500 if on else 10)
        to_device(p, 4e6)
        step(p, layers, skip_load=True)

    loop(p, body)
    return [p]


@case("input.too-few-workers input.cpu-bound input.storage-bound", "MultiProcessing __next__ waits in every step")
def workers_few_steady(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, noise=0.1)
    layers = transformer(p.device, 8)
    loop(p, lambda i: step(p, layers, next_us=2.2e4 if on else 90))
    return [p]


@case(
    "input.too-few-workers input.cpu-bound input.storage-bound",
    "4 workers deliver together: every fourth __next__ waits long, the others not; mean supply is too low",
)
def workers_few_bursts(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("4090", seed, shapes=False)
    layers = cnn(p.device, 48)
    loop(p, lambda i: step(p, layers, next_us=(1.4e5 if i % 4 == 0 else 150) if on else 90, name="SGD"), 14)
    return [p]


@case("input.heavy-tail", "one batch in seven waits 15 times as long as a step: single huge samples")
def loader_heavy_tail(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = transformer(p.device, 4)
    late = {5: 2.4e5, 8: 1.9e5, 19: 3.1e5}
    loop(p, lambda i: step(p, layers, next_us=late.get(i, 120) if on else 120), 24)
    return [p]


@case("input.worker-restart", "__next__ waits 0.5 s where an epoch begins (iterator is made anew), else nothing")
def loader_restart(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True)
    layers = transformer(p.device, 3)

    def body(i: int) -> None:
        if i % 6 == 3 and on:
            with p.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                p.wait(2500)
            with (
                p.py("torch/utils/data/dataloader.py(494): __iter__"),
                p.py("torch/utils/data/dataloader.py(1035): __init__"),
            ):
                for _ in range(8):
                    with (
                        p.py("multiprocessing/process.py(110): start"),
                        p.py("multiprocessing/popen_fork.py(62): _launch"),
                    ):
                        p.wait(11000)
            load(p, 4.1e5)
        step(p, layers, next_us=110, skip_load=i % 6 == 3 and on)

    loop(p, body, 20)
    return [p]


@case("host.launch-bound host.small-operators", "GNN: hundreds of 3 us kernels, queue empty, dispatch dominates")
def gnn_small_kernels(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, host=1.2 if on else 0.01)
    d = p.device
    layers: list[Layer] = []
    for _ in range(14):
        layers += [
            pointwise(d, "aten::index_select", [4096, 64], "fp32", 1, back="IndexSelectBackward0"),
            pointwise(d, "aten::mul", [4096, 64], "fp32", 2, back="MulBackward0"),
            pointwise(d, "aten::scatter_add", [2048, 64], "fp32", 2, back="ScatterAddBackward0"),
            linear(d, 2048, 64, 64, "tf32"),
            pointwise(d, "aten::relu", [2048, 64], "fp32", back="ReluBackward0"),
        ]
    loop(p, lambda i: step(p, layers, next_us=80, dtype="fp32"))
    return [p]


@case("host.launch-bound host.small-operators", "LSTM cells in a Python loop on ROCm: tiny GEMM and pointwise kernels")
def rnn_rocm(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("MI300X", seed, host=1.5 if on else 0.01, shapes=False, noise=0.12)
    d = p.device
    layers = [
        x
        for _ in range(40)
        for x in (
            linear(d, 64, 256, 1024),
            pointwise(d, "aten::sigmoid", [64, 1024], back="SigmoidBackward0"),
            pointwise(d, "aten::tanh", [64, 256], back="TanhBackward0"),
        )
    ]
    loop(p, lambda i: step(p, layers, next_us=60))
    return [p]


@case("host.python", "26 ms of numpy metrics by Python in each step, no sync; device idles while nothing is launched")
def python_metrics_stack(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, stack=True)
    layers = transformer(p.device, 6)

    def body(i: int) -> None:
        step(p, layers)
        with p.py("metrics.py(77): update"):
            for _ in range(40):
                with p.py("metrics.py(19): ngram_overlap"):
                    p.wait(650 if on else 5)

    loop(p, body)
    return [p]


@case("host.python", "unannotated 18 ms holes on the main thread between forward and backward; no stacks recorded")
def python_hole_nostack(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, noise=0.08)
    layers = transformer(p.device, 3)

    def body(i: int) -> None:
        load(p, 100)
        numbers = forward(p, layers)
        p.wait(2.6e4 if on else 100)
        backward(p, layers, numbers)
        optimizer(p, layers)

    loop(p, body)
    return [p]


def _items(p: Prog, layers: list[Layer], i: int, on: bool, how: str) -> None:
    load(p, 100)

    def hook(j: int) -> None:
        if not on or j % 4 != 2:
            return
        if how == "nonzero":
            with p.op("aten::index", [[8192, 1024], [8192]]), p.op("aten::nonzero", [[8192]]):
                p.kernel("void at_cuda_detail::cub::DeviceReduceSingleTileKernel<>", 3, 1, 256)
                p.copy("DtoH (Device -> Pinned)", 8)
                p.sync("Stream")
        elif how == "event":
            p.copy("DtoH (Device -> Pinned)", 4)
            p.mark()
            p.sync("Event")
        else:
            p.sync("Device")

    numbers = forward(p, layers, hook)
    backward(p, layers, numbers)
    optimizer(p, layers)


@case("host.sync", "masked indexing in each MoE layer waits for the device (nonzero), then the device starves")
def sync_nonzero(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, host=1.3)
    layers = transformer(p.device, 10, 4, 1024, 1024)
    loop(p, lambda i: _items(p, layers, i, on, "nonzero"))
    return [p]


@case("host.sync", "torch.cuda.synchronize() around every part for timing (cudaDeviceSynchronize)")
def sync_device_timers(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, host=1.8, shapes=False)
    layers = transformer(p.device, 10, 4, 512, 1024, compiled=False)
    loop(p, lambda i: _items(p, layers, i, on, "device"))
    return [p]


@case("host.sync", "gradient clipping reads each norm by .item(): hundreds of small syncs after backward")
def sync_clip_item(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = transformer(p.device, 12, 4, 512, 1024)

    def body(i: int) -> None:
        load(p, 100)
        backward(p, layers, forward(p, layers))
        for n in [n for x in layers for n in x.params]:
            with p.op("aten::linalg_vector_norm", [[n]]):
                p.cpu(8)
                p.kernel(
                    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps>>",
                    stream_us(p.device, n * 2) + 2,
                    64,
                    512,
                )
            if on:
                item(p)
                p.cpu(60)
            else:
                p.cpu(6)
        optimizer(p, layers)

    loop(p, body)
    return [p]


@case("host.gc", "Python GC events of 180 ms every fourth step on the main thread")
def gc_pauses(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, stack=True)
    layers = transformer(p.device, 6)

    def body(i: int) -> None:
        step(p, layers)
        if on and i % 4 == 3:
            with p.span("python_function", "Python GC"):
                p.wait(1.8e5)

    loop(p, body, 14)
    return [p]


@case("host.pageable-copy", "64-128 MB from pageable memory at 5 GB/s, the call blocks the host, device idle")
def pageable_batches(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers, size = cnn(p.device, 64), r.uniform(6.4e7, 1.2e8)

    def body(i: int) -> None:
        load(p, 100, size=4e3)
        if on:
            to_device(p, size, "HtoD (Pageable -> Device)", wait=True, speed=5.0)
        else:
            p.stream = 13
            to_device(p, size)
            p.stream = 7
        step(p, layers, skip_load=True, name="SGD")
        item(p)

    loop(p, body)
    return [p]


@case("host.recompile", "dynamo compiles again in most steps (dynamic shapes): _compile spans of 60 ms in the step")
def recompiles(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed, host=0.6)
    layers = transformer(p.device, 6)

    def body(i: int) -> None:
        load(p, 100)
        if on and i % 3 != 1:
            with p.note("_compile.compile_inner (dynamo_timed)"):
                p.wait(2e4)
                with (
                    p.note("backend_compile (dynamo_timed)"),
                    p.note("compile_fx.<locals>.fw_compiler_base (dynamo_timed)"),
                ):
                    p.wait(5e4)
        with p.span("cpu_op", "Torch-Compiled Region: 0/%d" % (i if on else 0)):
            numbers = forward(p, layers)
        backward(p, layers, numbers)
        optimizer(p, layers)

    loop(p, body, 12)
    return [p]


@case(
    "host.allocator memory.allocator-retry memory.fragmentation",
    "cudaMalloc of 2-4 ms several times in each step, no frees",
)
def malloc_each_step(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("L4", seed, host=1.4)
    layers = transformer(p.device, 4, 2, 256, 512, compiled=False)

    def hook(j: int) -> None:
        if on and j % 3 == 0:
            with p.op("aten::empty", [[]]):
                p.call("cudaMalloc", 1500)

    def body(i: int) -> None:
        load(p, 100)
        backward(p, layers, forward(p, layers, hook))
        optimizer(p, layers)

    loop(p, body)
    return [p]


@case(
    "memory.allocator-retry host.allocator memory.fragmentation",
    "near OOM: sync, a burst of cudaFree, then cudaMalloc, in each step",
)
def allocator_retry(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = transformer(p.device, 5)

    def hook(j: int) -> None:
        if on and j == 20:
            with p.op("aten::empty", [[]]):
                p.call("cudaMalloc", 300)
                p.sync("Device")
                for _ in range(24):
                    p.call("cudaFree", 700)
                for _ in range(4):
                    p.call("cudaMalloc", 1800)

    def body(i: int) -> None:
        load(p, 100)
        backward(p, layers, forward(p, layers, hook))
        optimizer(p, layers)

    loop(p, body)
    return [p]
