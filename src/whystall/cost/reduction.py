"""Reductions, softmax, losses, pooling and scans: operations by elements read (N) and results (R)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec, tensors

OPS_PER_ELEMENT = {
    0: (
        "max min amax amin aminmax argmax argmin any all sort argsort topk kthvalue median mode nonzero unique "
        "_unique2 "
        "unique_consecutive unique_dim bincount histc searchsorted bucketize count_nonzero equal  "
        "max_pool2d_with_indices "
        "max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d cummax cummin _aminmax _assert_async "
        "is_nonzero "
        "_foreach_max _local_scalar_dense item allclose fractional_max_pool2d fractional_max_pool3d histogram "
        "_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors hash_tensor nanmedian "
        "nonzero_static "
        "_unique unique_dim_consecutive"
    ),
    1: (
        "sum mean nansum cumsum cumprod prod avg_pool2d avg_pool3d adaptive_avg_pool2d _adaptive_avg_pool2d "
        "_adaptive_avg_pool3d avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d_backward trace nll_loss_backward nll_loss2d_backward linalg_cross segment_reduce"
    ),
    2: ("norm linalg_vector_norm logsumexp _foreach_norm logcumsumexp l1_loss linalg__powsum _foreach_powsum"),
    3: "mse_loss smooth_l1_loss huber_loss kl_div std var std_mean var_mean dist multi_margin_loss",
    4: "_softmax_backward_data _log_softmax_backward_data _masked_softmax_backward",
    5: "binary_cross_entropy binary_cross_entropy_backward soft_margin_loss",
}
TABLE = {name: ops for ops, names in OPS_PER_ELEMENT.items() for name in names.split()}
TO_SCALAR = frozenset({"any", "all", "equal", "mse_loss", "l1_loss", "smooth_l1_loss"})
TO_HOST = frozenset({"equal", "allclose", "item", "is_nonzero", "_local_scalar_dense", "_assert_async"})


def reduction(name: str, arguments: tuple[Argument, ...]) -> Work:
    """The work of the reduction ``name``: operations for each element of the first tensor (or list of tensors)."""
    source = arguments[0]
    listed = [one for one in source if isinstance(one, TensorSpec)] if isinstance(source, (list, tuple)) else [source]
    numel = sum(spec.numel for spec in listed if isinstance(spec, TensorSpec) and not _is_integer(spec))
    return Work(0, TABLE[name] * numel, "reduction", _results(name, listed, arguments))


def _results(name: str, listed: Sequence[Argument], arguments: tuple[Argument, ...]) -> tuple[TensorSpec, ...]:
    source = listed[0]
    if not isinstance(source, TensorSpec) or name in TO_HOST:
        return ()
    if isinstance(arguments[0], (list, tuple)):  # foreach: one result for each tensor
        return tuple(TensorSpec((), one.dtype) for one in listed if isinstance(one, TensorSpec))
    if name.startswith(("cum", "_softmax", "_log_softmax", "sort")):
        return (source,)
    dims = next((one for one in arguments[1:2] if isinstance(one, (int, list, tuple))), None)
    if name in TO_SCALAR or dims is None or tensors(dims):
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


def nll_loss(data: TensorSpec, target: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``nll_loss_forward``: one product and one addition for each target; of a row of classes one number is read."""
    count = target.numel
    outputs = (TensorSpec((), data.dtype), TensorSpec((), data.dtype))
    return Work(0, 2 * count, "reduction", outputs, read=count * data.item_bits // 8 + target.nbytes)


def unscale(gradients: Sequence[TensorSpec], found: TensorSpec, *_: Argument) -> Work:
    """``_amp_foreach_non_finite_check_and_unscale_``: one product for each gradient, in place."""
    return Work(0, sum(spec.numel for spec in gradients), "reduction", (*gradients, found))


def segment_backward(_gradient: TensorSpec, _out: TensorSpec, data: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``_segment_reduce_backward``: one operation for each element that was reduced."""
    return Work(0, data.numel, "reduction", (data,))


def embedding_bag(weight: TensorSpec, indices: TensorSpec, offsets: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``_embedding_bag``: one addition for each row that is read; only those rows are read."""
    width, size = weight.shape[-1], weight.item_bits // 8
    out = TensorSpec((offsets.numel, width), weight.dtype)
    rows = indices.numel
    return Work(0, rows * width, "reduction", (out,), read=rows * width * size + indices.nbytes + offsets.nbytes)


def embedding_bag_backward(
    gradient: TensorSpec, indices: TensorSpec, _offsets: TensorSpec, *rest: Argument, **_: Argument
) -> Work:
    """``_embedding_bag_backward``: one addition for each element of each row that was looked up."""
    rows, width = int(rest[3]), gradient.shape[-1]  # type: ignore[arg-type]
    if rest[6] is True:  # a sparse gradient: the rows that were looked up, and which they were
        out = [TensorSpec((indices.numel, width), gradient.dtype), indices]
    else:
        out = [TensorSpec((rows, width), gradient.dtype)]
    return Work(0, indices.numel * width, "reduction", tuple(out), written=sum(spec.nbytes for spec in out))


def embedding_bag_dense_backward(
    gradient: TensorSpec, indices: TensorSpec, _bags: TensorSpec, _sizes: Argument, _maxima: Argument, rows: int,
    *_: Argument, **__: Argument,
) -> Work:  # fmt: skip
    """``_embedding_bag_dense_backward``: the same, for a dense gradient."""
    width = gradient.shape[-1]
    return Work(0, indices.numel * width, "reduction", (TensorSpec((rows, width), gradient.dtype),))


def embedding_bag_weights_backward(
    gradient: TensorSpec, weight: TensorSpec, indices: TensorSpec, offsets: TensorSpec, *_: Argument, **__: Argument
) -> Work:
    """``_embedding_bag_per_sample_weights_backward``: a product and an addition for each element of each row."""
    elements = indices.numel * weight.shape[-1]
    read = gradient.nbytes + elements * weight.item_bits // 8 + indices.nbytes + offsets.nbytes
    return Work(0, 2 * elements, "reduction", (TensorSpec((indices.numel,), gradient.dtype),), read=read)


def pairs(data: TensorSpec, *_: Argument) -> Work:
    """``_pdist_forward``: subtract, raise and add for each coordinate of each pair of rows."""
    count = data.shape[0] * (data.shape[0] - 1) // 2
    return Work(0, 3 * count * data.shape[1], "reduction", (TensorSpec((count,), data.dtype),))


def pairs_backward(gradient: TensorSpec, data: TensorSpec, *_: Argument) -> Work:
    """``_pdist_backward``: subtract, raise, scale, and add to both rows of each pair."""
    return Work(0, 5 * gradient.numel * data.shape[1], "reduction", (data,))


def group_count(shape: Sequence[int], normalized: Sequence[int]) -> int:
    """How many groups of the trailing ``normalized`` sizes a tensor of ``shape`` holds."""
    return prod(shape) // max(prod(normalized), 1)


FORMULAS = {
    **dict.fromkeys(("aten::_softmax", "aten::_safe_softmax", "aten::_masked_softmax"), softmax),
    "aten::_log_softmax": log_softmax,
    **dict.fromkeys(("aten::nll_loss_forward", "aten::nll_loss2d_forward"), nll_loss),
    **dict.fromkeys(("aten::_embedding_bag", "aten::_embedding_bag_forward_only"), embedding_bag),
    "aten::_embedding_bag_backward": embedding_bag_backward,
    "aten::_embedding_bag_dense_backward": embedding_bag_dense_backward,
    "aten::_embedding_bag_per_sample_weights_backward": embedding_bag_weights_backward,
    "aten::_segment_reduce_backward": segment_backward,
    "aten::_pdist_forward": pairs,
    "aten::_pdist_backward": pairs_backward,
    "aten::_amp_foreach_non_finite_check_and_unscale_": unscale,
}
