"""The native fast paths that run a whole attention or encoder layer as one operator."""

from __future__ import annotations

from math import prod

from whystall.cost.attention import heads_first, sdpa
from whystall.cost.matrix import linear
from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec


def multi_head_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _width: Argument,
    heads: int,
    w_qkv: TensorSpec,
    b_qkv: TensorSpec,
    w_out: TensorSpec,
    b_out: TensorSpec,
    *_: Argument,
) -> Work:
    """``_native_multi_head_attention``: three projections in, scores and values, one projection out."""
    width = query.shape[-1]
    third = TensorSpec((width, width), w_qkv.dtype)
    works = [linear(one, third, b_qkv) for one in (query, key, value)]
    q, k, v = (
        TensorSpec((one.shape[0], heads, one.shape[1], width // heads), one.dtype) for one in (query, key, value)
    )
    works += [sdpa(q, k, v), linear(query, w_out, b_out)]
    scores = TensorSpec((prod(query.shape[:1]), query.shape[1], heads_first(q, k, v).sequences[0][1]), query.dtype)
    return _sum(works, (query, scores))


def encoder_layer(
    data: TensorSpec,
    width: int,
    heads: int,
    w_qkv: TensorSpec,
    b_qkv: TensorSpec,
    w_out: TensorSpec,
    b_out: TensorSpec,
    _gelu: Argument,
    _norm_first: Argument,
    _eps: Argument,
    _nw1: Argument,
    _nb1: Argument,
    _nw2: Argument,
    _nb2: Argument,
    w_up: TensorSpec,
    b_up: TensorSpec,
    w_down: TensorSpec,
    b_down: TensorSpec,
    *_: Argument,
) -> Work:
    """``_transformer_encoder_layer_fwd``: attention, feed-forward, two residuals and two normalisations."""
    attention = multi_head_attention(data, data, data, width, heads, w_qkv, b_qkv, w_out, b_out)
    up = linear(data, w_up, b_up)
    hidden = TensorSpec((*data.shape[:-1], w_up.shape[0]), data.dtype)
    down = linear(hidden, w_down, b_down)
    rows = prod(data.shape[:-1])
    around = Work(0, 2 * data.numel + 2 * (7 * data.numel + 2 * rows) + 5 * hidden.numel)
    return _sum([attention, up, down, around], (data,))


def _sum(works: list[Work], outputs: tuple[TensorSpec, ...]) -> Work:
    return Work(sum(one.flops for one in works), sum(one.elementwise for one in works), "attention", outputs)


FORMULAS = {
    "aten::_native_multi_head_attention": multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": encoder_layer,
}
