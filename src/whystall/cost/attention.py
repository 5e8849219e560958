"""Scaled dot-product attention in every fused form, forward and backward.

Forward is two matrix products, scores and values: 2 H Sq Sk (d_qk + d_v) FLOPs a sequence. Backward is twice that in
the model's convention; a fused kernel computes the scores once more, so it executes 2 H Sq Sk (3 d_qk + 2 d_v).
The softmax inside a fused kernel is no separate elementwise work. Causal counts take half of a square of scores, as
Megatron's convention does, not the diagonal's exact (S + 1) / 2 S.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec


@dataclass(frozen=True, slots=True)
class Scores:
    """The score matrices of a call: query heads, and (queries, keys) of each sequence."""

    heads: int
    sequences: tuple[tuple[int, int], ...]
    d_qk: int
    d_v: int
    causal: bool = False
    bottom_right: bool = False

    @property
    def dense(self) -> int:
        """Heads x queries x keys over the sequences."""
        return self.heads * sum(queries * keys for queries, keys in self.sequences)

    @property
    def useful_doubled(self) -> int:
        """Twice the part of ``dense`` that the mask leaves."""
        if not self.causal:
            return 2 * self.dense
        return self.heads * sum(_below_diagonal(*sizes, self.bottom_right) for sizes in self.sequences)


def _below_diagonal(queries: int, keys: int, bottom_right: bool) -> int:
    """Twice the area that a causal mask leaves of a rectangle of scores."""
    if bottom_right:
        return queries * (2 * keys - queries) if queries <= keys else keys * keys
    return queries * queries if queries <= keys else keys * (2 * queries - keys)


def forward_work(scores: Scores, outputs: tuple[TensorSpec, ...]) -> Work:
    """The work of a forward pass: scores and values."""
    width = scores.d_qk + scores.d_v
    return Work(
        2 * scores.dense * width,
        0,
        "attention",
        outputs,
        causal=scores.useful_doubled * width,
    )


def backward_work(scores: Scores, outputs: tuple[TensorSpec, ...]) -> Work:
    """The work of a backward pass, which computes the scores once more."""
    width = scores.d_qk + scores.d_v
    return Work(
        4 * scores.dense * width,
        0,
        "attention",
        outputs,
        causal=2 * scores.useful_doubled * width,
        executed=2 * scores.dense * (3 * scores.d_qk + 2 * scores.d_v),
    )


def heads_first(query: TensorSpec, key: TensorSpec, value: TensorSpec, *, causal: bool = False) -> Scores:
    """The scores of [batch, heads, sequence, width] tensors; fewer key heads change nothing (GQA)."""
    *batch, heads, queries, width = query.shape
    count = 1
    for size in batch:
        count *= size
    return Scores(count * heads, ((queries, key.shape[-2]),), width, value.shape[-1], causal)


def heads_third(query: TensorSpec, key: TensorSpec, value: TensorSpec, *, causal: bool, bottom_right: bool) -> Scores:
    """The scores of [batch, sequence, heads, width] tensors."""
    batch, queries, heads, width = query.shape
    return Scores(batch * heads, ((queries, key.shape[1]),), width, value.shape[-1], causal, bottom_right)


def packed(
    query: TensorSpec,
    _key: TensorSpec,
    value: TensorSpec,
    offsets_q: TensorSpec,
    offsets_k: TensorSpec,
    **shape: Argument,
) -> Scores:
    """The scores of packed sequences; without the offsets' values all are taken as long as the longest."""
    heads, width = query.shape[-2:]
    if offsets_q.values is not None and offsets_k.values is not None:
        lengths = tuple(zip(_lengths(offsets_q.values), _lengths(offsets_k.values), strict=True))
    else:
        longest_q, longest_k = int(shape["longest_q"] or 0), int(shape["longest_k"] or 0)  # type: ignore[arg-type]
        count = max(min(offsets_q.numel - 1, -(-query.numel // max(heads * width * longest_q, 1))), 1)
        lengths = ((longest_q, longest_k),) * count
    return Scores(heads, lengths, width, value.shape[-1], bool(shape["causal"]), bool(shape.get("bottom_right")))


def _lengths(offsets: tuple[int, ...]) -> list[int]:
    return [after - before for before, after in pairwise(offsets)]


def out_first(query: TensorSpec, value: TensorSpec) -> tuple[TensorSpec, ...]:
    """The result beside ``query``, and the sums of exponentials that a backward pass needs."""
    return (TensorSpec((*query.shape[:-1], value.shape[-1]), query.dtype), TensorSpec(query.shape[:-1], "float32"))


def sdpa(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _dropout: Argument = 0.0,
    is_causal: Argument = False,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``_scaled_dot_product_flash_attention`` on every device."""
    return forward_work(heads_first(query, key, value, causal=bool(is_causal)), out_first(query, value))


def sdpa_biased(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _bias: Argument,
    _log_sums: Argument = False,
    _dropout: Argument = 0.0,
    is_causal: Argument = False,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``_scaled_dot_product_efficient_attention`` and its cuDNN sister."""
    return forward_work(heads_first(query, key, value, causal=bool(is_causal)), out_first(query, value))


def sdpa_masked(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _mask: Argument = None,
    _dropout: Argument = 0.0,
    is_causal: Argument = False,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``scaled_dot_product_attention`` where it is not taken apart, and the fused form of other devices."""
    return forward_work(heads_first(query, key, value, causal=bool(is_causal)), out_first(query, value))


def _backward_at(place: int) -> Callable[..., Work]:
    """The backward formula of heads-first tensors whose ``is_causal`` is argument number ``place``."""

    def formula(
        _gradient: TensorSpec, query: TensorSpec, key: TensorSpec, value: TensorSpec, *rest: Argument, **named: Argument
    ) -> Work:
        causal = named.get("is_causal", rest[place - 4] if len(rest) > place - 4 else False)
        return backward_work(heads_first(query, key, value, causal=bool(causal)), (query, key, value))

    return formula


def flash_forward(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    offsets_q: TensorSpec | None,
    offsets_k: TensorSpec | None,
    longest_q: Argument,
    longest_k: Argument,
    _dropout: Argument = 0.0,
    is_causal: Argument = False,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``_flash_attention_forward``: [batch, sequence, heads, width], or packed sequences with offsets."""
    scores = flash_scores(query, key, value, offsets_q, offsets_k, longest_q, longest_k, is_causal)
    return forward_work(scores, out_first(query, value))


def flash_backward(
    _gradient: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _out: TensorSpec,
    _log_sums: TensorSpec,
    offsets_q: TensorSpec | None,
    offsets_k: TensorSpec | None,
    longest_q: Argument,
    longest_k: Argument,
    _dropout: Argument = 0.0,
    is_causal: Argument = False,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``_flash_attention_backward``."""
    scores = flash_scores(query, key, value, offsets_q, offsets_k, longest_q, longest_k, is_causal)
    return backward_work(scores, (query, key, value))


def flash_scores(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    offsets_q: TensorSpec | None,
    offsets_k: TensorSpec | None,
    longest_q: Argument,
    longest_k: Argument,
    causal: Argument,
) -> Scores:
    """The scores of packed sequences, or of a batch without offsets; masks are bound to the bottom right."""
    if offsets_q is None or offsets_k is None:
        return heads_third(query, key, value, causal=bool(causal), bottom_right=True)
    return packed(
        query, key, value, offsets_q, offsets_k,
        longest_q=longest_q, longest_k=longest_k, causal=causal, bottom_right=True,
    )  # fmt: skip


def efficient_forward(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _bias: Argument,
    offsets_q: TensorSpec | None,
    offsets_k: TensorSpec | None,
    longest_q: Argument,
    longest_k: Argument,
    _dropout: Argument = 0.0,
    mask_type: Argument = 0,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``_efficient_attention_forward``: heads third.

    Mask type 1 is causal from the top left, 2 from the bottom right.
    """
    scores = _efficient_scores(query, key, value, offsets_q, offsets_k, longest_q, longest_k, mask_type)
    return forward_work(scores, out_first(query, value))


def efficient_backward(
    _gradient: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _bias: Argument,
    _out: TensorSpec,
    offsets_q: TensorSpec | None,
    offsets_k: TensorSpec | None,
    longest_q: Argument,
    longest_k: Argument,
    _log_sums: Argument = None,
    _dropout: Argument = 0.0,
    _seed: Argument = None,
    _offset: Argument = None,
    mask_type: Argument = 0,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``_efficient_attention_backward``."""
    scores = _efficient_scores(query, key, value, offsets_q, offsets_k, longest_q, longest_k, mask_type)
    return backward_work(scores, (query, key, value))


def _efficient_scores(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    offsets_q: TensorSpec | None,
    offsets_k: TensorSpec | None,
    longest_q: Argument,
    longest_k: Argument,
    mask_type: Argument,
) -> Scores:
    causal, bottom_right = mask_type in {1, 2}, mask_type == 2
    if offsets_q is None or offsets_k is None:
        return heads_third(query, key, value, causal=causal, bottom_right=bottom_right)
    query, key, value = (TensorSpec(one.shape[1:], one.dtype) for one in (query, key, value))  # a batch of one
    return packed(
        query, key, value, offsets_q, offsets_k,
        longest_q=longest_q, longest_k=longest_k, causal=causal, bottom_right=bottom_right,
    )  # fmt: skip


def flex_backward(query: TensorSpec, key: TensorSpec, value: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``flex_attention_backward``: query, key and value come first."""
    return backward_work(heads_first(query, key, value), (query, key, value))


def flex_forward(query: TensorSpec, key: TensorSpec, value: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``flex_attention``: dense, since the effect of its mask function cannot be seen."""
    return forward_work(heads_first(query, key, value), out_first(query, value))


OFFSETS = {
    "aten::_flash_attention_forward": (3, 4),
    "aten::_flash_attention_backward": (6, 7),
    "aten::_efficient_attention_forward": (4, 5),
    "aten::_efficient_attention_backward": (6, 7),
}
"""Where an operator's sequence offsets stand, whose values decide its work."""

FORMULAS = {
    **dict.fromkeys(
        ("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_for_cpu"), sdpa
    ),
    **dict.fromkeys(
        ("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention"), sdpa_biased
    ),
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_fused_attention_overrideable",
            "aten::_scaled_dot_product_attention_math_for_mps",
        ),
        sdpa_masked,
    ),
    # the number is where the schema has `is_causal`
    "aten::_scaled_dot_product_flash_attention_backward": _backward_at(11),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _backward_at(7),
    "aten::_scaled_dot_product_efficient_attention_backward": _backward_at(11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _backward_at(14),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _backward_at(13),
    "aten::_flash_attention_forward": flash_forward,
    "aten::_flash_attention_backward": flash_backward,
    "aten::_efficient_attention_forward": efficient_forward,
    "aten::_efficient_attention_backward": efficient_backward,
    "higher_order::flex_attention": flex_forward,
    "higher_order::flex_attention_backward": flex_backward,
}
