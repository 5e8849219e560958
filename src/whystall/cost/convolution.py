"""Convolutions, forward and backward: each output element is one dot product with the filter of its group."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec

Sizes = Sequence[int]


def forward(
    data: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool = False,
    output_padding: Sizes = (0,),
    groups: int = 1,
    *_: Argument,
) -> Work:
    """``convolution``: 2 x weight elements x positions, those of the input for a transposed one.

    >>> spec = TensorSpec((2, 8, 10, 10)), TensorSpec((16, 2, 3, 3)), None
    >>> forward(*spec, (1, 1), (1, 1), (1, 1), False, (0, 0), 4).flops
    115200
    """
    rank = len(weight.shape) - 2
    spatial = data.shape[-rank:]
    sizes = (spatial, weight.shape[2:], *(_full(one, rank) for one in (stride, padding, dilation, output_padding)))
    each = zip(*sizes, strict=True)
    if transposed:
        channels = weight.shape[1] * groups
        result = [
            (size - 1) * step - 2 * pad + dil * (kernel - 1) + extra + 1 for size, kernel, step, pad, dil, extra in each
        ]
    else:
        channels = weight.shape[0]
        result = [
            (size + 2 * pad - dil * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, dil, _extra in each
        ]
    batch = data.shape[: -rank - 1]
    out = TensorSpec((*batch, channels, *result), data.dtype)
    positions = prod(batch) * prod(spatial if transposed else result)
    return Work(2 * positions * weight.numel, 0 if bias is None else out.numel, "convolution", (out,))


def _full(sizes: Sizes, rank: int) -> Sizes:
    return tuple(sizes) * rank if len(sizes) == 1 else sizes


def cudnn_forward(
    data: TensorSpec,
    weight: TensorSpec,
    padding: Sizes | None,
    stride: Sizes | None,
    dilation: Sizes | None,
    groups: int = 1,
    *_: Argument,
    outputs: Sequence[TensorSpec] | None = None,
) -> Work | None:
    """``cudnn_convolution``: the same without a bias, padding first; the result's shape makes up for missing steps."""
    if padding is None or stride is None or dilation is None:
        return _by_result(data, weight, None, outputs)
    return forward(data, weight, None, stride, padding, dilation, False, (0,), groups)


def _by_result(
    data: TensorSpec, weight: TensorSpec, bias: TensorSpec | None, outputs: Sequence[TensorSpec] | None
) -> Work | None:
    """The work from the result's shape, which stands in for stride, padding and dilation."""
    if not outputs:
        return None
    out, rank = outputs[0], len(weight.shape) - 2
    batch = data.shape[: -rank - 1]
    if out.shape[: -rank - 1] != batch or out.shape[-rank - 1] != weight.shape[0]:
        raise ValueError(f"{out.shape} is no result of {data.shape} and {weight.shape}")
    positions = prod(batch) * prod(out.shape[-rank:])
    return Work(2 * positions * weight.numel, 0 if bias is None else out.numel, "convolution", (out,))


def cudnn_transpose(
    data: TensorSpec,
    weight: TensorSpec,
    padding: Sizes,
    output_padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    *_: Argument,
) -> Work:
    """``cudnn_convolution_transpose``."""
    return forward(data, weight, None, stride, padding, dilation, True, output_padding, groups)


def biased_forward(
    data: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    padding: Sizes | None,
    stride: Sizes | None,
    dilation: Sizes | None,
    groups: int = 1,
    *_: Argument,
    outputs: Sequence[TensorSpec] | None = None,
) -> Work | None:
    """``mkldnn_convolution``, ``miopen_convolution``: bias third, padding before stride."""
    if padding is None or stride is None or dilation is None:
        return _by_result(data, weight, bias, outputs)
    return forward(data, weight, bias, stride, padding, dilation, False, (0,), groups)


def fused_relu(
    data: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    *_: Argument,
) -> Work:
    """``cudnn_convolution_relu``."""
    work = forward(data, weight, bias, stride, padding, dilation, False, (0,), groups)
    return work._replace(elementwise=work.elementwise + (work.outputs or ())[0].numel)


def slow_forward(
    data: TensorSpec,
    weight: TensorSpec,
    _kernel: Sizes,
    bias: TensorSpec | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes = (1,),
    *_: Argument,
) -> Work:
    """``_slow_conv2d_forward`` and its kin: the kernel's size third. A depthwise one shows in the weight."""
    return forward(data, weight, bias, stride, padding, dilation)


def time_batch_channels(
    data: TensorSpec, weight: TensorSpec, bias: TensorSpec | None, padding: int = 0, *_: Argument, **__: Argument
) -> Work:
    """``conv_tbc``: data [time, batch, channels], weight [kernel, channels in, channels out]."""
    time, batch, _channels = data.shape
    out = TensorSpec((time + 2 * padding - weight.shape[0] + 1, batch, weight.shape[2]), data.dtype)
    flops = 2 * out.shape[0] * batch * weight.numel
    return Work(flops, 0 if bias is None else out.numel, "convolution", (out,))


def backward(
    gradient: TensorSpec,
    data: TensorSpec,
    weight: TensorSpec,
    _bias_sizes: Argument,
    _stride: Sizes,
    _padding: Sizes,
    _dilation: Sizes,
    transposed: bool,
    _output_padding: Sizes,
    _groups: int,
    output_mask: Sequence[bool],
    *_: Argument,
) -> Work:
    """``convolution_backward``: each requested gradient costs the same as the forward pass, in groups too."""
    rank = len(weight.shape) - 2
    side = data if transposed else gradient
    one = 2 * prod(side.shape[: -rank - 1]) * prod(side.shape[-rank:]) * weight.numel
    wants_data, wants_weight, wants_bias = output_mask
    outputs = [spec for spec, wanted in ((data, wants_data), (weight, wants_weight)) if wanted]
    if wants_bias:
        outputs.append(TensorSpec((gradient.shape[-rank - 1],), gradient.dtype))
    return Work(
        one * (bool(wants_data) + bool(wants_weight)),
        gradient.numel if wants_bias else 0,
        "convolution",
        tuple(outputs),
        weight_flops=one if wants_weight else 0,
    )


def cudnn_backward(data: TensorSpec, gradient: TensorSpec, weight: TensorSpec, *rest: Argument) -> Work | None:
    """``cudnn_convolution_backward`` of PyTorch up to 1.10: its mask comes last, and without it the cost is unknown."""
    mask = rest[-1] if rest else None
    if not isinstance(mask, (list, tuple)) or len(mask) < 2 or not all(isinstance(one, bool) for one in mask):
        return None  # the two operators that it calls are counted instead
    wanted = [spec for spec, asked in zip((data, weight), mask, strict=False) if asked]
    one = _gradient_flops(gradient, weight)
    return Work(one * len(wanted), 0, "convolution", tuple(wanted), weight_flops=one if mask[1] else 0)


def backward_input(size: Sizes | None, gradient: TensorSpec, weight: TensorSpec, *_: Argument) -> Work:
    """``cudnn_convolution_backward_input`` and its kin: the gradient of the input, whose ``size`` comes first."""
    outputs = None if size is None else (TensorSpec(tuple(size), gradient.dtype),)
    return Work(_gradient_flops(gradient, weight), 0, "convolution", outputs)


def backward_weight(size: Sizes | None, gradient: TensorSpec, data: TensorSpec, *_: Argument) -> Work | None:
    """``cudnn_convolution_backward_weight`` and its kin: the gradient of a weight, whose ``size`` comes first."""
    if size is None:
        return None
    weight = TensorSpec(tuple(size), data.dtype)
    flops = _gradient_flops(gradient, weight)
    return Work(flops, 0, "convolution", (weight,), weight_flops=flops)


def transpose_backward_weight(size: Sizes | None, _gradient: TensorSpec, data: TensorSpec, *_: Argument) -> Work | None:
    """``cudnn_convolution_transpose_backward_weight``: the positions are those of the input."""
    return backward_weight(size, data, data)


def _gradient_flops(gradient: TensorSpec, weight: TensorSpec) -> int:
    """FLOPs of one gradient: every position of the result meets every element of the weight, in groups too."""
    rank = len(weight.shape) - 2
    return 2 * prod(gradient.shape[: -rank - 1]) * prod(gradient.shape[-rank:]) * weight.numel


FORMULAS = {
    **dict.fromkeys(("aten::cudnn_convolution_backward", "aten::miopen_convolution_backward"), cudnn_backward),
    **dict.fromkeys(
        ("aten::cudnn_convolution_backward_input", "aten::miopen_convolution_backward_input"), backward_input
    ),
    **dict.fromkeys(
        ("aten::cudnn_convolution_backward_weight", "aten::miopen_convolution_backward_weight"), backward_weight
    ),
    "aten::cudnn_convolution_transpose_backward_input": cudnn_forward,  # a plain convolution of the gradient
    "aten::cudnn_convolution_transpose_backward_weight": transpose_backward_weight,
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"), forward),
    "aten::cudnn_convolution": cudnn_forward,
    "aten::cudnn_convolution_transpose": cudnn_transpose,
    "aten::cudnn_convolution_relu": fused_relu,
    "aten::conv_tbc": time_batch_channels,
    **dict.fromkeys(
        (
            "aten::mkldnn_convolution",
            "aten::miopen_convolution",
            "aten::miopen_depthwise_convolution",
            "mkldnn::_convolution_pointwise",
        ),
        biased_forward,
    ),
    **dict.fromkeys(
        (
            "aten::_slow_conv2d_forward",
            "aten::slow_conv3d_forward",
            "aten::slow_conv_dilated2d",
            "aten::slow_conv_dilated3d",
            "aten::_conv_depthwise2d",
            "aten::conv_depthwise3d",
        ),
        slow_forward,
    ),
    **dict.fromkeys(("aten::convolution_backward", "aten::convolution_backward_overrideable"), backward),
}
