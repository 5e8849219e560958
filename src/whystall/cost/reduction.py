"""Reductions, softmax, losses, pooling and scans: operations by elements read (N) and results (R)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec

OPS_PER_ELEMENT = {
    0: (
        "max min amax amin aminmax argmax argmin any all sort argsort topk kthvalue median mode nonzero unique _unique2 "
        "unique_consecutive unique_dim bincount histc searchsorted bucketize count_nonzero equal max_pool2d_with_indices "
        "max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d cummax cummin _aminmax _assert_async is_nonzero "
        "_foreach_max _local_scalar_dense item allclose"
    ),
    1: (
        "sum mean nansum cumsum cumprod prod avg_pool2d avg_pool3d adaptive_avg_pool2d _adaptive_avg_pool2d "
        "_adaptive_avg_pool3d avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward trace "
        "upsample_nearest1d upsample_nearest2d upsample_nearest2d_backward nll_loss_backward nll_loss2d_backward "
        "_amp_foreach_non_finite_check_and_unscale_ linalg_cross"
    ),
    2: "norm linalg_vector_norm logsumexp _foreach_norm logcumsumexp l1_loss nll_loss_forward nll_loss2d_forward",
    3: "mse_loss smooth_l1_loss huber_loss kl_div std var std_mean var_mean",
    4: "_softmax_backward_data _log_softmax_backward_data",
    5: "binary_cross_entropy binary_cross_entropy_backward",
    8: "upsample_bilinear2d upsample_bilinear2d_backward",
    32: "upsample_bicubic2d upsample_bicubic2d_backward grid_sampler_2d",
}
TABLE = {name: ops for ops, names in OPS_PER_ELEMENT.items() for name in names.split()}
TO_SCALAR = frozenset({"any", "all", "equal", "nll_loss_forward", "mse_loss", "l1_loss", "smooth_l1_loss"})


def reduction(name: str, arguments: tuple[Argument, ...]) -> Work:
    """The work of the reduction ``name``: operations for each element of the first tensor (or list of tensors)."""
    source = arguments[0]
    listed = [one for one in source if isinstance(one, TensorSpec)] if isinstance(source, (list, tuple)) else [source]
    numel = sum(spec.numel for spec in listed if isinstance(spec, TensorSpec) and not _is_integer(spec))
    return Work(0, TABLE[name] * numel, "reduction", _results(name, listed, arguments))


def _results(name: str, listed: Sequence[Argument], arguments: tuple[Argument, ...]) -> tuple[TensorSpec, ...]:
    source = listed[0]
    if not isinstance(source, TensorSpec):
        return ()
    if name.startswith(("cum", "_softmax", "_log_softmax", "sort")):
        return (source,)
    dims = next((one for one in arguments[1:2] if isinstance(one, (int, list, tuple))), None)
    if name in TO_SCALAR or dims is None:
        return (TensorSpec((), source.dtype),)
    gone = {int(one) % max(len(source.shape), 1) for one in (dims if isinstance(dims, (list, tuple)) else [dims])}
    return (TensorSpec(tuple(s for place, s in enumerate(source.shape) if place not in gone), source.dtype),)


def _is_integer(spec: TensorSpec) -> bool:
    return not spec.is_floating and spec.dtype != "unknown"


def softmax(data: TensorSpec, dim: int = -1, *_: Argument, **__: Argument) -> Work:
    """``_softmax``: maximum, subtraction, exponential, sum, division: 5 N - 2 R."""
    rows = _rows(data, dim)
    return Work(0, 5 * data.numel - 2 * rows, "reduction", (data,))


def log_softmax(data: TensorSpec, dim: int = -1, *_: Argument, **__: Argument) -> Work:
    """``_log_softmax``: as softmax with a logarithm a row and a subtraction for the division: 5 N - R."""
    return Work(0, 5 * data.numel - _rows(data, dim), "reduction", (data,))


def _rows(data: TensorSpec, dim: int) -> int:
    if not data.shape:
        return 1
    return data.numel // max(data.shape[dim], 1)


def max_pool_backward(gradient: TensorSpec, data: TensorSpec, *_: Argument) -> Work:
    """``max_pool*_with_indices_backward``: one addition for each gradient."""
    return Work(0, gradient.numel, "reduction", (data,))


def embedding_bag(weight: TensorSpec, indices: TensorSpec, offsets: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``_embedding_bag``: one addition for each row that is read; only those rows are read."""
    width, size = weight.shape[-1], weight.item_bits // 8
    out = TensorSpec((offsets.numel, width), weight.dtype)
    rows = indices.numel
    return Work(0, rows * width, "reduction", (out,), read=rows * width * size + indices.nbytes + offsets.nbytes)


def group_count(shape: Sequence[int], normalized: Sequence[int]) -> int:
    """How many groups of the trailing ``normalized`` sizes a tensor of ``shape`` holds."""
    return prod(shape) // max(prod(normalized), 1)


FORMULAS = {
    **dict.fromkeys(("aten::_softmax", "aten::_safe_softmax", "aten::_masked_softmax"), softmax),
    "aten::_log_softmax": log_softmax,
    **dict.fromkeys(
        ("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward"), max_pool_backward
    ),
    **dict.fromkeys(("aten::_embedding_bag", "aten::_embedding_bag_forward_only"), embedding_bag),
}
