"""Layer, group, batch and RMS normalisation: N elements in R groups."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from whystall.cost.reduction import group_count
from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec

_Optional = TensorSpec | None


def _normalised(data: TensorSpec, groups: int, weight: _Optional, bias: _Optional) -> Work:
    """Mean, centre, square, sum, scale (5 N), weight and bias (N each), epsilon and root (2 R)."""
    ops = (5 + (weight is not None) + (bias is not None)) * data.numel + 2 * groups
    moments = TensorSpec((groups,), "float32")
    return Work(0, ops, "normalisation", (data, moments, moments))


def layer_norm(data: TensorSpec, shape: Sequence[int], weight: _Optional, bias: _Optional, *_: Argument) -> Work:
    """``native_layer_norm``: 7 N + 2 R with weight and bias."""
    return _normalised(data, group_count(data.shape, shape), weight, bias)


def group_norm(
    data: TensorSpec,
    weight: _Optional,
    bias: _Optional,
    batch: int,
    _channels: int,
    _size: int,
    groups: int,
    *_: Argument,
) -> Work:
    """``native_group_norm``: 7 N + 2 R."""
    return _normalised(data, batch * groups, weight, bias)


def batch_norm(data: TensorSpec, weight: _Optional, bias: _Optional, *rest: Argument, **_: Argument) -> Work:
    """``native_batch_norm``: 7 N + 2 C in training; 4 N + 2 C with running moments."""
    channels = data.shape[1] if len(data.shape) > 1 else 1
    if False in rest:  # the `training` flag, wherever an overload has it
        ops = (2 + (weight is not None) + (bias is not None)) * data.numel + 2 * channels
        return Work(0, ops, "normalisation", (data,))
    return _normalised(data, channels, weight, bias)


def batch_norm_eval(data: TensorSpec, weight: _Optional, bias: _Optional, *_: Argument) -> Work:
    """Batch normalisation with running moments."""
    return batch_norm(data, weight, bias, False)


def batch_moments(data: TensorSpec, *_: Argument) -> Work:
    """``batch_norm_stats``: a synchronised batch normalisation's own moments, 4 N + 2 C (mean, centre, square, sum)."""
    channels = data.shape[1]
    moments = TensorSpec((channels,), "float32")
    return Work(0, 4 * data.numel + 2 * channels, "normalisation", (moments, moments))


def gather_moments(data: TensorSpec, mean: TensorSpec, deviation: TensorSpec, *_: Argument) -> Work:
    """``batch_norm_gather_stats*``: joins the moments of all ranks, by convention 8 each; the data are not read."""
    moments = TensorSpec(mean.shape[-1:], mean.dtype)
    del data
    return Work(0, 8 * mean.numel, "normalisation", (moments, moments), read=mean.nbytes + deviation.nbytes)


def batch_apply(data: TensorSpec, weight: _Optional, bias: _Optional, *_: Argument) -> Work:
    """``batch_norm_elemt``: centre, scale, weight and bias."""
    return Work(0, (2 + (weight is not None) + (bias is not None)) * data.numel, "normalisation", (data,))


def batch_backward_sums(_gradient: TensorSpec, data: TensorSpec, mean: TensorSpec, *_: Argument) -> Work:
    """``batch_norm_backward_reduce``: 4 of the 11 N of a backward pass, the two sums of gradients."""
    return Work(0, 4 * data.numel, "normalisation", (mean,) * 4)


def batch_backward_apply(_gradient: TensorSpec, data: TensorSpec, *_: Argument) -> Work:
    """``batch_norm_backward_elemt``: the other 7 N."""
    return Work(0, 7 * data.numel, "normalisation", (data,))


def rms_norm(data: TensorSpec, shape: Sequence[int], weight: _Optional = None, *_: Argument, **__: Argument) -> Work:
    """``_fused_rms_norm``: square, sum, scale (3 N), weight (N), epsilon and root (2 R)."""
    groups = group_count(data.shape, shape)
    ops = (3 + (weight is not None)) * data.numel + 2 * groups
    return Work(0, ops, "normalisation", (data, TensorSpec((groups,), "float32")))


def backward(_gradient: TensorSpec, data: TensorSpec, *rest: Argument) -> Work:
    """The backward pass of any of them, by convention 11 N: two sums, four products and sums, the two gradients."""
    mask = rest[-1]
    outputs = (data,) if isinstance(mask, (list, tuple)) and mask and mask[0] else ()
    return Work(0, 11 * data.numel, "normalisation", outputs)


def local_response(data: TensorSpec, *_: Argument) -> Work:
    """A norm with one scale a slice (``_weight_norm_interface``): square, sum, scale."""
    return Work(0, 3 * data.numel, "normalisation", (TensorSpec((prod(data.shape),), data.dtype),))


FORMULAS = {
    "aten::native_layer_norm": layer_norm,
    "aten::native_group_norm": group_norm,
    **dict.fromkeys(
        (
            "aten::native_batch_norm",
            "aten::_native_batch_norm_legit",
            "aten::_batch_norm_with_update",
            "aten::_batch_norm_impl_index",
            "aten::cudnn_batch_norm",
            "aten::miopen_batch_norm",
        ),
        batch_norm,
    ),
    **dict.fromkeys(("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update"), batch_norm_eval),
    "aten::batch_norm_stats": batch_moments,
    **dict.fromkeys(("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"), gather_moments),
    "aten::batch_norm_elemt": batch_apply,
    "aten::batch_norm_backward_reduce": batch_backward_sums,
    "aten::batch_norm_backward_elemt": batch_backward_apply,
    **dict.fromkeys(("aten::_fused_rms_norm", "aten::rms_norm"), rms_norm),
    **dict.fromkeys(
        (
            "aten::native_layer_norm_backward",
            "aten::native_group_norm_backward",
            "aten::native_batch_norm_backward",
            "aten::batch_norm_backward",
            "aten::cudnn_batch_norm_backward",
            "aten::miopen_batch_norm_backward",
            "aten::_fused_rms_norm_backward",
        ),
        backward,
    ),
    **dict.fromkeys(("aten::_weight_norm_interface", "aten::_weight_norm_interface_backward"), local_response),
}
