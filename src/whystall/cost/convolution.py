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
    data: TensorSpec, weight: TensorSpec, padding: Sizes, stride: Sizes, dilation: Sizes, groups: int, *_: Argument
) -> Work:
    """``cudnn_convolution``: the same without a bias, padding first."""
    return forward(data, weight, None, stride, padding, dilation, False, (0,), groups)


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
    padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int = 1,
    *_: Argument,
) -> Work:
    """``mkldnn_convolution``, ``miopen_convolution``: bias third, padding before stride."""
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
    """``_slow_conv2d_forward`` and its kin: the kernel's size third. Depthwise ones see it in the weight."""
    return forward(data, weight, bias, stride, padding, dilation)


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
    """``convolution_backward``: each gradient that is asked for costs what the forward pass cost, in groups too."""
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


FORMULAS = {
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"), forward),
    "aten::cudnn_convolution": cudnn_forward,
    "aten::cudnn_convolution_transpose": cudnn_transpose,
    "aten::cudnn_convolution_relu": fused_relu,
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
