"""Layers: which operators and kernels they run and how long on a device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .devices import SIZES, Device, gemm_name

Kernel = tuple[str, float, int, int]
Dims = list[Any]
EW = "void at::native::vectorized_elementwise_kernel<4, at::native::%s, std::array<char*, %dul> >(int)"


BACKWARD = {
    "MulBackward0": ["aten::mul", "aten::mul"],
    "PowBackward0": ["aten::pow", "aten::mul", "aten::mul"],
    "AddBackward0": [],
    "SiluBackward0": ["aten::silu_backward"],
    "ReluBackward0": ["aten::threshold_backward"],
    "GeluBackward0": ["aten::gelu_backward"],
    "SigmoidBackward0": ["aten::sigmoid_backward"],
    "TanhBackward0": ["aten::tanh_backward"],
    "SoftmaxBackward0": ["aten::_softmax_backward_data"],
    "DivBackward0": ["aten::div"],
    "MaskedFillBackward0": ["aten::masked_fill"],
    "IndexSelectBackward0": ["aten::index_add_"],
    "ScatterAddBackward0": ["aten::gather"],
    "NativeLayerNormBackward0": ["aten::native_layer_norm_backward"],
    "CudnnBatchNormBackward0": ["aten::cudnn_batch_norm_backward"],
}


@dataclass
class Layer:
    """One call of a module: the operators of its forward with their kernels, and those of its backward."""

    path: list[tuple[str, Dims]]
    kernels: list[Kernel]
    back: str = ""
    back_ops: list[tuple[str, Dims, list[Kernel]]] = field(default_factory=list)
    params: list[int] = field(default_factory=list)
    dtype: str = "bf16"
    module: str = ""
    before: list[tuple[str, Dims, list[Kernel]]] = field(default_factory=list)


def gemm(d: Device, m: int, n: int, k: int, dtype: str, batch: int = 1, how: str = "", eff: float = 0.62) -> Kernel:
    """A matrix product by the roofline."""
    peak = {"fp32": d.fp32, "tf32": d.tf32 or d.fp32}.get(dtype, d.half)
    eff = 0.85 if dtype == "fp32" else (0.45 if d.rocm else eff)
    if how == "align1":
        eff *= 0.4
    flops, size = 2.0 * m * n * k * batch, SIZES[dtype] * batch * (m * k + n * k + m * n)
    tiles = max(1, -(-m // 128)) * max(1, -(-n // 128)) * batch
    us = max(flops / (peak * eff) / 1e6, size / (d.bandwidth * 0.8) / 1e3) + 2.5
    return gemm_name(d, dtype, how), us, tiles, 256


def stream_us(d: Device, size: float) -> float:
    """Time of a kernel that is bound by memory."""
    return size / (d.bandwidth * 0.82) / 1e3 + 1.6


def linear(d: Device, m: int, k: int, n: int, dtype: str = "bf16", how: str = "") -> Layer:
    """nn.Linear with bias."""
    fwd = gemm(d, m, n, k, dtype, how=how)
    name = f"void at::native::reduce_kernel<128, 4, at::native::ReduceOp<{dtype}, at::native::func_wrapper_t<>>>"
    bias = (name, stream_us(d, m * n * SIZES[dtype]), 512, 512)
    return Layer(
        [("aten::linear", [[m, k], [n, k], [n]]), ("aten::addmm", [[n], [m, k], [k, n], [], []])],
        [fwd],
        "AddmmBackward0",
        [
            ("aten::mm", [[m, n], [n, k]], [gemm(d, m, k, n, dtype, how=how)]),
            ("aten::mm", [[n, m], [m, k]], [gemm(d, n, k, m, dtype, how=how)]),
            ("aten::sum", [[m, n], [], []], [bias]),
        ],
        [n * k, n],
        dtype,
        "Linear",
    )


def pointwise(
    d: Device,
    op: str,
    dims: list[int],
    dtype: str = "bf16",
    reads: int = 1,
    functor: str = "",
    back: str = "",
    back_reads: int = 2,
    params: list[int] | None = None,
    kernel: str = "",
) -> Layer:
    """An operator bound by memory, and its backward."""
    numel = 1
    for x in dims:
        numel *= x
    size = SIZES[dtype] * numel
    fwd = (
        kernel or EW % (functor or op.split("::")[1] + "_functor", reads + 1),
        stream_us(d, size * (reads + 1)),
        max(1, numel // 512),
        128,
    )
    layer = Layer([(op, [dims] * reads)], [fwd], params=params or [], dtype=dtype, module=op.split("::")[1])
    if back:
        layer.back = back
        for op_name in BACKWARD[back]:
            name = EW % (op_name.split("::")[1] + "_functor", back_reads + 1)
            us = stream_us(d, size * (back_reads + 1))
            layer.back_ops.append((op_name, [dims] * back_reads, [(name, us, max(1, numel // 512), 128)]))
    return layer


def norm(d: Device, dims: list[int], dtype: str = "bf16") -> Layer:
    """nn.LayerNorm by its own kernel."""
    layer = pointwise(
        d,
        "aten::native_layer_norm",
        dims,
        dtype,
        back="NativeLayerNormBackward0",
        params=[dims[-1]] * 2,
        kernel="void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
    )
    layer.path = [
        ("aten::layer_norm", [dims, [], [dims[-1]], [dims[-1]], [], []]),
        ("aten::native_layer_norm", [dims, [], [dims[-1]], [dims[-1]], []]),
    ]
    return layer


def fused(
    d: Device, what: str, dims: list[int], number: int, dtype: str = "bf16", reads: int = 2, back: int = 0
) -> Layer:
    """A kernel that Inductor made of several operators."""
    name = f"triton_red_fused_{what}_{number}"
    layer = pointwise(d, "aten::x", dims, dtype, reads, kernel=name)
    layer.path = [(name, [dims] * reads)]
    name_back = f"triton_red_fused_{what}_backward_{number}"
    layer.back, size = "", SIZES[dtype]
    for x in dims:
        size *= x
    layer.back_ops = [(name_back, [dims] * reads, [(name_back, stream_us(d, size * ((back or reads) + 1)), 4096, 256)])]
    return layer


def flash(d: Device, b: int, h: int, s: int, e: int, dtype: str = "bf16") -> Layer:
    """Scaled dot-product attention by flash attention."""
    us = 4.0 * b * h * s * s * e * 0.5 / ((d.half if dtype != "fp32" else d.tf32) * 0.5) / 1e6 + 4
    dims = [[b, h, s, e]] * 3
    name = "void pytorch_flash::flash_%s_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4>, true>"
    return Layer(
        [
            ("aten::scaled_dot_product_attention", dims),
            ("aten::_scaled_dot_product_flash_attention", dims),
            ("aten::_flash_attention_forward", dims),
        ],
        [(name % "fwd", us, b * h * s // 128, 128)],
        "ScaledDotProductFlashAttentionBackward0",
        [
            (
                "aten::_scaled_dot_product_flash_attention_backward",
                dims * 2,
                [(name % "bwd_dq_dk_dv_loop_seqk_parallel", us * 2.6, b * h * s // 128, 256)],
            )
        ],
        [],
        dtype,
    )


def written_attention(d: Device, b: int, h: int, s: int, e: int, dtype: str = "bf16") -> list[Layer]:
    """Attention in operators of its own: bmm, scale, mask, softmax, bmm."""
    scores, out = [b * h, s, s], []
    for m, n, k in ((s, s, e), (s, e, s)):
        dims = [[b * h, m, k], [b * h, k, n]]
        out.append(
            Layer(
                [("aten::matmul", dims), ("aten::bmm", dims)],
                [gemm(d, m, n, k, dtype, b * h)],
                "BmmBackward0",
                [
                    ("aten::bmm", [[b * h, k, m], [b * h, m, n]], [gemm(d, k, n, m, dtype, b * h)]),
                    ("aten::bmm", [[b * h, m, n], [b * h, n, k]], [gemm(d, m, k, n, dtype, b * h)]),
                ],
                [],
                dtype,
            )
        )
    soft = pointwise(
        d,
        "aten::_softmax",
        scores,
        dtype,
        back="SoftmaxBackward0",
        kernel="void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11>",
    )
    soft.path = [("aten::softmax", [scores, [], []]), ("aten::_softmax", [scores, [], []])]
    return [
        out[0],
        pointwise(d, "aten::div", scores, dtype, back="DivBackward0", back_reads=1),
        pointwise(d, "aten::masked_fill", scores, dtype, back="MaskedFillBackward0", back_reads=1),
        soft,
        out[1],
    ]


def conv(
    d: Device,
    b: int,
    c: int,
    o: int,
    hw: int,
    dtype: str = "fp16",
    kernel: int = 3,
    nchw: bool = False,
    slow: float = 1.0,
) -> Layer:
    """nn.Conv2d as an implicit matrix product; `nchw`: with conversions of the layout around it."""
    m, k, size = b * hw * hw, c * kernel * kernel, SIZES[dtype]
    flops = 2.0 * m * o * k
    peak = {"fp32": d.fp32, "tf32": d.tf32 or d.fp32}.get(dtype, d.half)
    us = max(flops / (peak * 0.5) / 1e6, stream_us(d, size * b * hw * hw * (c + o))) * slow + 3
    if slow > 1:
        name = "void implicit_convolve_sgemm<__half, __half, 1024, 5, 5, 3, 3, 3, 1, false, false, true>"
    elif dtype == "fp32":
        name = "void cudnn::cnn::implicit_convolve_sgemm_128x128<float>"
    elif d.capability[0] == 7:
        name = "volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1"
    else:
        name = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_tensor16x8x16"
    dims: Dims = [[b, c, hw, hw], [o, c, kernel, kernel], [o], [], [], [], [], [], []]
    turn: list[Kernel] = []
    if nchw:
        name2 = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>"
        turn = [
            (name2, stream_us(d, 2.4 * size * b * c * hw * hw), 4096, 256),
            (name2.replace("nchwToNhwc", "nhwcToNchw"), stream_us(d, 2.4 * size * b * o * hw * hw), 4096, 256),
        ]
    body = (name, us, m // 128, 256)
    return Layer(
        [
            ("aten::conv2d", dims),
            ("aten::convolution", dims),
            ("aten::_convolution", dims),
            ("aten::cudnn_convolution", [*dims[:2], *[[]] * 7]),
        ],
        [*turn[:1], body, *turn[1:]],
        "ConvolutionBackward0",
        [
            (
                "aten::convolution_backward",
                [[b, o, hw, hw], *dims[:2], *[[]] * 8],
                [
                    *turn,
                    (name.replace("fprop", "dgrad"), us * 1.05, m // 128, 256),
                    *turn,
                    (name.replace("fprop", "wgrad"), us * 1.1, m // 128, 256),
                ],
            )
        ],
        [o * k],
        dtype,
        "Conv2d",
    )


def batch_norm(d: Device, b: int, c: int, hw: int, dtype: str = "fp16") -> Layer:
    """BatchNorm and ReLU in one kernel of cuDNN."""
    layer = pointwise(
        d,
        "aten::cudnn_batch_norm",
        [b, c, hw, hw],
        dtype,
        back="CudnnBatchNormBackward0",
        params=[c, c],
        kernel="void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half2, float, 512, true, 1>",
    )
    layer.path = [
        ("aten::batch_norm", [[b, c, hw, hw], [c], [c]]),
        ("aten::cudnn_batch_norm", [[b, c, hw, hw], [c], [c]]),
    ]
    return layer


def cast_layers(d: Device, layers: list[Layer], dims: Dims) -> list[Layer]:
    """The layers, with what each product takes made into bf16 from fp32 first."""
    numel = 1
    for size in dims:
        numel *= size
    name = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda, std::array<char*, 2ul>>"
    made: Kernel = (name, stream_us(d, 6.0 * numel), max(1, numel // 512), 128)
    return [
        replace(layer, before=[("aten::to", dims, [made])]) if layer.module == "Linear" else layer for layer in layers
    ]


def block(
    d: Device,
    b: int,
    s: int,
    h: int,
    i: int = 0,
    dtype: str = "bf16",
    attention: str = "flash",
    compiled: bool = True,
    tp: int = 1,
    how: str = "",
) -> list[Layer]:
    """A layer of a transformer."""
    m, dims, heads = b * s, [b, s, h], h // 64 // tp
    att = [flash(d, b, heads, s, 64, dtype)] if attention == "flash" else written_attention(d, b, heads, s, 64, dtype)
    if compiled:
        pre, mid, end = (
            [fused(d, "add_native_layer_norm", dims, i, dtype)],
            [fused(d, "add_native_layer_norm", dims, i + 1, dtype)],
            [],
        )
        act = [fused(d, "gelu", [b, s, 4 * h // tp], i + 2, dtype, 1)]
    else:
        pre, mid = [norm(d, dims, dtype)], [pointwise(d, "aten::add", dims, dtype, 2), norm(d, dims, dtype)]
        act = [pointwise(d, "aten::gelu", [b, s, 4 * h // tp], dtype, back="GeluBackward0")]
        end = [pointwise(d, "aten::add", dims, dtype, 2)]
    return [
        *pre,
        linear(d, m, h, 3 * h // tp, dtype, how),
        *att,
        linear(d, m, h // tp, h, dtype, how),
        *mid,
        linear(d, m, h, 4 * h // tp, dtype, how),
        *act,
        linear(d, m, 4 * h // tp, h, dtype, how),
        *end,
    ]
