"""Operators that move data and do no arithmetic, and those that only look at it differently."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec, broadcast, tensors

_INDEX_BYTES = 8

VIEWS = frozenset(
    [
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "as_strided",
        "expand",
        "permute",
        "transpose",
        "t",
        "squeeze",
        "unsqueeze",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "detach",
        "alias",
        "diagonal",
        "unfold",
        "view_as_real",
        "view_as_complex",
        "narrow",
        "movedim",
        "swapaxes",
        "lift_fresh",
        "lift_fresh_copy",
        "positive",
        "numpy_T",
        "mT",
        "mH",
        "adjoint",
        "conj",
        "_conj",
        "_neg_view",
        "_fw_primal",
        "resolve_conj",
        "resolve_neg",
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "_efficientzerotensor",
        "new_empty",
        "new_empty_strided",
        "resize",
        "resize_",
        "resize_as_",
        "set_",
        "_nested_view_from_buffer",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "is_same_size",
        "size",
        "stride",
        "record_stream",
        "pin_memory",
        "is_pinned",
        "result_type",
        "_has_compatible_shallow_copy_type",
        "_version",
        "requires_grad_",
        "retain_grad",
        "values",
        "indices",
        "crow_indices",
        "col_indices",
        "_assert_tensor_metadata",
        "_debug_has_internal_overlap",
        "_shape_as_tensor",
        "view_as",
        "unsafe_split",
        "unsafe_chunk",
        "unsafe_split_with_sizes",
        "_assert_scalar",
    ]
)
"""Operators that touch no element: views, allocations, questions about a tensor."""

MOVES = frozenset(
    [
        "copy_",
        "copy",
        "_to_copy",
        "clone",
        "contiguous",
        "cat",
        "stack",
        "index_select",
        "gather",
        "take",
        "flip",
        "roll",
        "rot90",
        "tril",
        "triu",
        "repeat",
        "repeat_interleave",
        "constant_pad_nd",
        "pad",
        "reflection_pad1d",
        "reflection_pad2d",
        "reflection_pad3d",
        "replication_pad1d",
        "replication_pad2d",
        "replication_pad3d",
        "masked_select",
        "masked_scatter",
        "scatter",
        "index_copy",
        "index_fill",
        "slice_scatter",
        "select_scatter",
        "as_strided_scatter",
        "diagonal_scatter",
        "diag",
        "diag_embed",
        "fill",
        "fill_",
        "zero",
        "zero_",
        "zeros",
        "zeros_like",
        "ones",
        "ones_like",
        "full",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "eye",
        "arange",
        "range",
        "linspace",
        "logspace",
        "scalar_tensor",
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "randint",
        "randint_like",
        "randperm",
        "normal",
        "normal_",
        "uniform",
        "uniform_",
        "random_",
        "exponential_",
        "cauchy_",
        "geometric_",
        "log_normal_",
        "bernoulli_",
        "multinomial",
        "one_hot",
        "im2col",
        "col2im",
        "select_backward",
        "slice_backward",
        "unfold_backward",
        "diagonal_backward",
        "as_strided_backward",
        "split_copy",
        "split_with_sizes_copy",
        "unbind_copy",
        "view_copy",
        "_pack_padded_sequence",
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "embedding_renorm",
        "_jagged_to_padded_dense_forward",
        "_padded_dense_to_jagged_forward",
        "_nested_from_padded",
        "max_unpool2d",
        "max_unpool3d",
        "masked_scatter_backward",
        "_unsafe_masked_index",
        "lu_unpack",
        "_cudnn_init_dropout_state",
        "complex",
        "_convert_weight_to_int4pack",
        "_dyn_quant_pack_4bit_weight",
        "quantize_per_tensor",
        "dequantize",
        "choose_qparams",
        "_fused_moving_avg_obs_fq_helper",
        "_chunk_cat",
        "block_diag",
        "tril_indices",
        "triu_indices",
        "expand_copy",
        "squeeze_copy",
        "unsqueeze_copy",
        "transpose_copy",
        "t_copy",
        "permute_copy",
        "select_copy",
        "slice_copy",
        "narrow_copy",
        "diagonal_copy",
        "unfold_copy",
        "as_strided_copy",
        "alias_copy",
        "detach_copy",
        "view_as_real_copy",
        "view_as_complex_copy",
        "_reshape_copy",
        "_reshape_alias_copy",
        "_conj_copy",
        "_neg_view_copy",
        "_pin_memory",
        "_copy_from",
        "_copy_from_and_resize",
        "to_padded_tensor",
        "vander",
    ]
)
"""Operators whose cost is the bytes they read and write."""

ACCUMULATES = frozenset(
    [
        "index_add",
        "scatter_add",
        "scatter_reduce",
        "index_put",
        "_index_put_impl_",
        "index_reduce",
        "put",
        "put_",
        "_unsafe_index_put",
        "_unsafe_masked_index_put_accumulate",
    ]
)
"""Operators with one addition for each element of their source."""


def move(arguments: tuple[Argument, ...]) -> Work:
    """The work of a copy: the bytes of all tensors in, and of the first tensor's elements out."""
    specs = tensors(arguments)
    return Work(0, 0, "memory", (specs[0],) if specs else None)


def copy(target: TensorSpec, source: TensorSpec, *_: Argument) -> Work:
    """``copy_``: reads the source, writes the target."""
    return Work(0, 0, "memory", (target,), read=source.nbytes)


def copy_each(targets: Sequence[TensorSpec], sources: Sequence[TensorSpec], *_: Argument) -> Work:
    """``_foreach_copy_``: as ``copy_``, for each pair."""
    return Work(0, 0, "memory", tuple(targets), read=sum(source.nbytes for source in sources))


def to_copy(source: TensorSpec, dtype: Argument = None, *_: Argument, **__: Argument) -> Work:
    """``_to_copy``: reads the source, writes it in ``dtype``."""
    name = SCALAR_TYPES.get(dtype, source.dtype) if isinstance(dtype, int) else dtype
    return Work(0, 0, "memory", (TensorSpec(source.shape, name if isinstance(name, str) else source.dtype),))


def concatenate(sources: list[TensorSpec], *_: Argument) -> Work:
    """``cat``, ``stack``: every source is read and written once."""
    return Work(0, 0, "memory", tuple(sources))


def fill(target: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``fill_``, ``zero_``: written, not read."""
    return Work(0, 0, "memory", (target,), read=0)


def fill_each(targets: Sequence[TensorSpec], *_: Argument) -> Work:
    """``_foreach_zero_``: written, not read."""
    return Work(0, 0, "memory", tuple(targets), read=0)


def embedding(weight: TensorSpec, indices: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``embedding``: only the rows that are looked up are read."""
    out = TensorSpec((*indices.shape, weight.shape[-1]), weight.dtype)
    return Work(0, 0, "memory", (out,), read=out.nbytes + indices.nbytes)


def embedding_backward(gradient: TensorSpec, indices: TensorSpec, rows: int, *_: Argument, **__: Argument) -> Work:
    """``embedding_dense_backward``: one addition for each element of the gradient."""
    out = TensorSpec((rows, gradient.shape[-1]), gradient.dtype)
    del indices
    return Work(0, gradient.numel, "memory", (out,))


def gather(source: TensorSpec, _dim: Argument, index: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``gather``, ``index_select``, ``take_along_dim``: reads the elements that it writes."""
    shape = index.shape
    if len(index.shape) == 1 and len(source.shape) > 1 and isinstance(_dim, int):  # index_select
        place = _dim % len(source.shape)
        shape = (*source.shape[:place], index.numel, *source.shape[place + 1 :])
    out = TensorSpec(shape, source.dtype)
    return Work(0, 0, "memory", (out,), read=out.nbytes + index.nbytes)


def index(source: TensorSpec, places: list[TensorSpec | None], *_: Argument) -> Work:
    """``index``: integer indices broadcast together; the dimensions without one stay."""
    if any(one is not None and one.dtype == "bool" for one in places):  # one row for each true value: at most all
        return Work(0, 0, "memory", (source,))
    picked = broadcast(*(one.shape for one in places if one is not None))
    kept = [size for place, size in enumerate(source.shape) if place >= len(places) or places[place] is None]
    out = TensorSpec((*picked, *kept), source.dtype)
    return Work(0, 0, "memory", (out,), read=out.nbytes + sum(one.nbytes for one in places if one is not None))


def put_rows(target: TensorSpec, places: Argument, values: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``_index_put_impl_``: reads the values and the rows that they are put into, and the indices, of 64 bits each.

    Recordings give a list of tensors no dtype.
    """
    given = places if isinstance(places, list) else []
    indices = sum(one.numel for one in given if isinstance(one, TensorSpec)) * _INDEX_BYTES
    return Work(0, 0, "memory", (target,), read=target.nbytes + values.nbytes + indices)


def accumulate(arguments: tuple[Argument, ...]) -> Work:
    """``index_add_``, ``scatter_add_``, ``index_put_``.

    One addition for each element of the source, the last tensor.
    """
    specs = tensors(arguments)
    source = next((spec for spec in reversed(specs) if spec.is_floating), specs[-1])
    return Work(0, source.numel, "memory", (source,), read=2 * source.nbytes)


SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
    23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz",
}  # fmt: skip
"""c10::ScalarType's numbers, as traces record a dtype argument (c10/core/ScalarType.h)."""

FORMULAS = {
    **dict.fromkeys(("aten::copy_", "aten::copy"), copy),
    **dict.fromkeys(("aten::_foreach_copy_", "aten::_foreach_copy"), copy_each),
    **dict.fromkeys(("aten::_foreach_zero_", "aten::_foreach_zero"), fill_each),
    "aten::_to_copy": to_copy,
    **dict.fromkeys(("aten::cat", "aten::stack", "aten::_chunk_cat"), concatenate),
    **dict.fromkeys(("aten::fill_", "aten::zero_", "aten::fill", "aten::zero"), fill),
    "aten::embedding": embedding,
    "aten::embedding_dense_backward": embedding_backward,
    **dict.fromkeys(("aten::gather", "aten::index_select"), gather),
    **dict.fromkeys(("aten::index", "aten::_unsafe_index"), index),
    "aten::_index_put_impl_": put_rows,
}
