# ruff: noqa: ARG001, ARG005, D103, RUF005 - a case is a function that registers itself; its text is in the decorator
"""Cases of kernels: precision, shapes, fusion, layout."""

from __future__ import annotations

import random

from .cases_host import one
from .layers import Layer, fused, linear, pointwise, stream_us
from .loops import case, cnn, loop, step, transformer
from .ops import backward, forward, load, optimizer
from .program import Prog


@case("compute.fp32-matmul compute.low-tensor-core", "ampere_sgemm in all products of fp32 tensors on an A100")
def fp32_matmul(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = [
        x
        for i in range(6)
        for x in (
            linear(p.device, 4096, 1024, 4096, "fp32" if on else "tf32"),
            fused(p.device, "gelu", [4096, 4096], i, "fp32", 1),
            linear(p.device, 4096, 4096, 1024, "fp32" if on else "tf32"),
        )
    ]
    loop(p, lambda i: step(p, layers, dtype="fp32"))
    return [p]


@case("compute.low-tensor-core compute.fp32-matmul", "fp32 products by sgemm kernels on a V100, no shapes recorded")
def v100_sgemm_noshapes(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("V100", seed, shapes=False)
    kind = "fp32" if on else "fp16"
    layers = [
        x
        for i in range(5)
        for x in (linear(p.device, 4096, 1024, 2048, kind), linear(p.device, 4096, 2048, 1024, kind))
    ]
    loop(p, lambda i: step(p, layers, dtype="fp32"), 6)
    return [p]


@case("compute.misaligned-shape", "hidden 1021: align1 kernels at 40 % of the speed, shapes recorded")
def misaligned(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    h, how = (1021, "align1") if on else (1024, "")
    layers = [
        x
        for i in range(8)
        for x in (
            linear(p.device, 8192, h, 4 * h, "bf16", how),
            fused(p.device, "gelu", [8192, 4 * h], i, reads=1),
            linear(p.device, 8192, 4 * h, h, "bf16", how),
        )
    ]
    loop(p, lambda i: step(p, layers))
    return [p]


@case("compute.fusible", "RMSNorm, rotary, SwiGLU written out: chains of pointwise kernels on large tensors")
def fusible_l4(r: random.Random, seed: int, on: bool) -> list[Prog]:
    return _chains(seed, on, shapes=True)


@case("compute.fusible", "as fusible_l4, but no shapes were recorded: how much is saved cannot be known exactly")
def fusible_no_shapes(r: random.Random, seed: int, on: bool) -> list[Prog]:
    return _chains(seed, on, shapes=False)


def _chains(seed: int, on: bool, *, shapes: bool) -> list[Prog]:
    p = one("L4", seed, shapes=shapes)
    d, dims = p.device, [4, 1024, 2048]

    def two(op: str, back: str) -> Layer:
        return pointwise(d, op, dims, reads=2, back=back)

    layers: list[Layer] = []
    for i in range(4):
        if on:
            layers += [pointwise(d, "aten::pow", dims, back="PowBackward0"), two("aten::mul", "MulBackward0")]
            layers += [pointwise(d, "aten::add", dims, back="AddBackward0"), two("aten::mul", "MulBackward0")]
        else:
            layers += [fused(d, "add_mul_pow", dims, i, reads=3, back=5)]
        layers += [linear(d, 4096, 2048, 2048)]
        if on:
            layers += [pointwise(d, "aten::silu", dims, back="SiluBackward0"), two("aten::mul", "MulBackward0")]
            layers += [two("aten::add", "AddBackward0")]
        else:
            layers += [fused(d, "add_mul_silu", dims, i, reads=3, back=5)]
        layers += [linear(d, 4096, 2048, 2048)]
    loop(p, lambda i: step(p, layers))
    return [p]


@case("compute.unfused-optimizer", "AdamW(foreach=False): eight kernels for each of 150 parameters")
def optimizer_loop(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = transformer(p.device, 14, 2, 512, 768)
    loop(p, lambda i: step(p, layers, opt="loop" if on else "fused"), 6)
    return [p]


@case("compute.unfused-attention", "bmm, div, masked_fill, softmax, bmm on [B*H,S,S]")
def attention_written(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed)
    layers = transformer(p.device, 6, 4, 2048, 1024, attention="math" if on else "flash")
    loop(p, lambda i: step(p, layers))
    return [p]


@case("compute.layout-conversion", "nchwToNhwc and back around every convolution")
def layout_nchw(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, shapes=r.random() < 0.5)
    layers = cnn(p.device, 64, nchw=on)
    loop(p, lambda i: step(p, layers, name="SGD"))
    return [p]


@case("compute.cast-churn", "autocast casts fp32 weights and activations before every product (aten::to copies)")
def casts(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed)
    layers = transformer(p.device, 6, 4, 512, 2048)
    copy = (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::"
        "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>, 4>"
    )
    for x in layers:
        if x.params and on:
            dims = [4096, 2048], x.path[-1][1][2]
            x.before = [("cast", d, [(copy, stream_us(p.device, d[0] * d[1] * 6), 4096, 128)]) for d in dims]
    loop(p, lambda i: step(p, layers))
    return [p]


@case(
    "compute.redundant-work",
    "activation checkpointing: each layer's forward runs again in backward (CheckpointFunctionBackward)",
)
def recompute_all(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed, stack=True)
    layers = transformer(p.device, 6)

    def body(i: int) -> None:
        load(p, 100)
        numbers = forward(p, layers)
        for j in range(5, -1, -1):
            part, seq = layers[7 * j : 7 * j + 7], numbers[7 * j : 7 * j + 7]
            if on:
                p.thread(1)
                with (
                    p.op("autograd::engine::evaluate_function: CheckpointFunctionBackward"),
                    p.op("CheckpointFunctionBackward"),
                    p.py("torch/utils/checkpoint.py(305): backward"),
                ):
                    forward(p, part)
                p.thread(0)
            backward(p, part, seq)
        optimizer(p, layers)

    loop(p, body)
    return [p]


@case(
    "compute.slow-convolution compute.low-tensor-core",
    "implicit_convolve_sgemm at a sixth of the speed of a tensor-core convolution, fp16, static shapes",
    "no rule",
)
def slow_conv(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = cnn(p.device, 32, slow=5.0 if on else 1.0)
    loop(p, lambda i: step(p, layers, name="SGD"))
    return [p]


@case(
    "compute.low-occupancy compute.wave-quantization",
    "a custom scan kernel of 8 blocks on 132 multiprocessors takes 40 % of the step",
    "no rule",
)
def low_occupancy(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("H100", seed)
    layers = transformer(p.device, 4)
    scan = Layer(
        [("selective_scan::fwd", [[8, 1024, 1024]])],
        [
            (
                "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16>>",
                3200 if on else 240,
                8 if on else 1024,
                128,
            )
        ],
        "SelectiveScanBackward",
        [
            (
                "selective_scan::bwd",
                [[8, 1024, 1024]],
                [
                    (
                        "void selective_scan_bwd_kernel<Selective_Scan_bwd_kernel_traits<128, 16>>",
                        6400 if on else 480,
                        8 if on else 1024,
                        128,
                    )
                ],
            )
        ],
    )
    layers = layers[:14] + [scan] + layers[14:]
    loop(p, lambda i: step(p, layers))
    return [p]


@case(
    "compute.fp32-matmul compute.low-tensor-core", "convolutions in fp32 with TF32 off: sgemm kernels, shapes recorded"
)
def conv_fp32(r: random.Random, seed: int, on: bool) -> list[Prog]:
    p = one("A100", seed)
    layers = cnn(p.device, 16, "fp32" if on else "tf32", 3)
    loop(p, lambda i: step(p, layers, name="SGD"), 6)
    return [p]
