"""Passes over layers, optimizers, loaders and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .devices import SIZES
from .layers import EW, Dims, Kernel, Layer, stream_us
from .program import BACK, MAIN, Prog


def forward(p: Prog, layers: list[Layer], hook: Callable[[int], None] | None = None, grad: bool = True) -> list[int]:
    """Run the layers; gives the sequence numbers that their backward refers to."""
    numbers = []
    for i, layer in enumerate(layers):
        p.sequence += 1
        numbers.append(p.sequence)
        with p.py(f"nn.Module: {layer.module or 'Block'}_{i}"):
            p.cpu(7)
            for _, dims, kernels in layer.before:
                cast(p, dims, kernels)
            _nest(p, layer.path, layer, p.sequence if grad else None)
        if hook:
            hook(i)
    return numbers


def cast(p: Prog, dims: Dims, kernels: list[Kernel]) -> None:
    """A tensor in fp32 is made into bf16."""
    kinds: dict[str, Any] = {"Input Dims": [dims, dims, []], "Input type": ["c10::BFloat16", "float", "Scalar"]}
    first: dict[str, Any] = {"Input Dims": [dims, [], []], "Input type": ["float", "Scalar", ""]}
    with p.op("aten::to", **first):
        p.cpu(3)
        with p.op("aten::_to_copy", **first):
            with p.op("aten::empty_strided"):
                p.cpu(4)
            with p.op("aten::copy_", **kinds):
                p.cpu(5)
                for k in kernels:
                    p.kernel(*k)


def _nest(p: Prog, path: list[tuple[str, Dims]], layer: Layer, sequence: int | None) -> None:
    extra: dict[str, Any] = {"Sequence number": sequence, "Fwd thread id": 0} if sequence and len(path) == 1 else {}
    with p.op(path[0][0], path[0][1], layer.dtype, **extra):
        p.cpu(5 if len(path) > 1 else 9)
        if len(path) > 1:
            _nest(p, path[1:], layer, sequence)
        else:
            for k in layer.kernels:
                p.kernel(*k)
        p.cpu(2)


def backward(
    p: Prog, layers: list[Layer], numbers: list[int], hook: Callable[[int, Layer], None] | None = None
) -> None:
    """loss.backward() on the thread of autograd."""
    with p.py("torch/_tensor.py(570): backward"), p.py("torch/autograd/graph.py(815): _engine_run_backward"):
        p.thread(BACK)
        for i in range(len(layers) - 1, -1, -1):
            layer = layers[i]
            seq: dict[str, Any] = {"Sequence number": numbers[i], "Fwd thread id": 1}
            if layer.back_ops:
                name = layer.back or "CompiledFunctionBackward"
                with p.op(f"autograd::engine::evaluate_function: {name}", **seq):
                    p.cpu(4)
                    with p.op(name, **seq):
                        for op, dims, kernels in layer.back_ops:
                            with p.op(op, dims, layer.dtype):
                                p.cpu(9)
                                for k in kernels:
                                    p.kernel(*k)
            for _ in layer.params:
                with p.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"):
                    p.cpu(6)
            if hook:
                hook(i, layer)
        p.thread(MAIN)


def optimizer(p: Prog, layers: list[Layer], kind: str = "fused", name: str = "AdamW", states: int = 7) -> None:
    """The optimizer's step: "fused", "foreach" or "loop" (each parameter by itself)."""
    params = [n for layer in layers for n in layer.params]
    total, d = sum(params), p.device
    functor = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "%s, at::native::(anonymous namespace)::%s>"
    )
    with p.note(f"Optimizer.step#{name}.step"), p.py(f"torch/optim/{name.lower()}.py(210): step"):
        p.cpu(40 + 0.4 * len(params))
        if kind == "fused":
            chunks = max(1, min(len(params) // 30, 12))
            with p.op(f"aten::_fused_{name.lower()}_"):
                p.cpu(20 + 0.3 * len(params))
                for _ in range(chunks):
                    p.kernel(
                        functor % ("FusedOptimizerTensorListMetadata<4>", "FusedAdamMathFunctor<float, 4>"),
                        stream_us(d, total * 4.0 * states / chunks),
                        320,
                        512,
                    )
        elif kind == "foreach":
            for what, moved in (
                ("lerp_", 3),
                ("mul_", 2),
                ("addcmul_", 3),
                ("sqrt", 2),
                ("div_", 2),
                ("add_", 2),
                ("addcdiv_", 4),
            ):
                with p.op(f"aten::_foreach_{what}"):
                    p.cpu(10 + 0.3 * len(params))
                    p.kernel(
                        functor % ("TensorListMetadata<2>", f"{what}Functor<float>"),
                        stream_us(d, total * 4.0 * moved),
                        320,
                        512,
                    )
        else:
            for n in params:
                for what, moved in (
                    ("mul_", 2),
                    ("lerp_", 3),
                    ("mul_", 2),
                    ("addcmul_", 3),
                    ("sqrt", 2),
                    ("div", 2),
                    ("add_", 2),
                    ("addcdiv_", 4),
                ):
                    p.cpu(3)
                    with p.op(f"aten::{what}", [[n]] * max(1, moved - 1), "fp32"):
                        p.cpu(5)
                        p.kernel(
                            EW % (what + "functor<float>", moved), stream_us(d, n * 4.0 * moved), max(1, n // 512), 128
                        )
    with p.note(f"Optimizer.zero_grad#{name}.zero_grad"):
        p.cpu(20)


def load(
    p: Prog,
    us: float,
    workers: bool = True,
    size: float = 4e6,
    kind: str = "HtoD (Pinned -> Device)",
    wait: bool = False,
) -> None:
    """The next batch of the loader, and its copy to the device."""
    label = "MultiProcessing" if workers else "SingleProcess"
    with (
        p.py("torch/utils/data/dataloader.py(732): __next__"),
        p.note(f"enumerate(DataLoader)#_{label}DataLoaderIter.__next__"),
    ):
        p.wait(us)
    to_device(p, size, kind, wait)


def to_device(
    p: Prog, size: float, kind: str = "HtoD (Pinned -> Device)", wait: bool = False, speed: float | None = None
) -> None:
    """batch.to(device)."""
    with p.op("aten::to"), p.op("aten::_to_copy"), p.op("aten::copy_", [[int(size) // 4]] * 2, "fp32"):
        p.cpu(6)
        p.copy(f"{'HtoD (Host -> Device)' if p.device.rocm else kind}", size, speed=speed)
        if wait:
            p.sync("Stream")


def item(p: Prog, size: int = 4) -> None:
    """tensor.item()."""
    with p.op("aten::item", [[]], "fp32"), p.op("aten::_local_scalar_dense", [[]], "fp32"):
        p.cpu(3)
        p.copy("DtoH (Device -> Host)" if p.device.rocm else "DtoH (Device -> Pageable)", size)
        p.sync("Stream")


def reduce_gradients(
    p: Prog, group: list[int], busbw: float, bucket: float = 25e6, dtype: str = "bf16", stream: int = 20
) -> Callable[[int, Layer], None]:
    """A hook as of DDP: all-reduces a bucket as soon as it is full."""
    held = {"bytes": 0}

    def hook(i: int, layer: Layer) -> None:
        held["bytes"] += sum(layer.params) * SIZES[dtype]
        if held["bytes"] >= bucket or (i == 0 and held["bytes"]):
            all_reduce(p, held["bytes"], group, busbw, dtype, stream)
            held["bytes"] = 0

    return hook


def all_reduce(
    p: Prog, size: float, group: list[int], busbw: float, dtype: str = "bf16", stream: int = 20, **more: Any
) -> None:
    """An all-reduce of `size` bytes at a bus bandwidth in GB/s."""
    n = len(group)
    short = "bf16" if dtype == "bf16" else "f32"
    us = 18 + size * 2 * (n - 1) / n / busbw / 1e3
    name = (
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
        if p.device.rocm
        else f"ncclDevKernel_AllReduce_Sum_{short}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    )
    p.collective("allreduce", name, int(size // SIZES[dtype]), us, group, dtype=dtype, stream=stream, **more)
