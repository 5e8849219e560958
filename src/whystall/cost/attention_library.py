"""Attention by the operators of the flash-attn packages, versions 2 and 3.

Heads third, masks bound to the bottom right.
"""

from __future__ import annotations

from whystall.cost.attention import backward_work, flash_scores, forward_work, heads_third, out_first
from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec


def library_forward(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _dropout: Argument,
    _scale: Argument,
    causal: Argument,
    *_: Argument,
) -> Work:
    """``flash_attn::_flash_attn_forward`` of flash-attn 2: heads third, the mask bound to the bottom right."""
    scores = heads_third(query, key, value, causal=bool(causal), bottom_right=True)
    return forward_work(scores, out_first(query, value))


def library_backward(
    _gradient: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _out: Argument,
    _log_sums: Argument,
    _dq: Argument,
    _dk: Argument,
    _dv: Argument,
    _dropout: Argument,
    _scale: Argument,
    causal: Argument,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``flash_attn::_flash_attn_backward``."""
    scores = heads_third(query, key, value, causal=bool(causal), bottom_right=True)
    return backward_work(scores, (query, key, value))


def library_varlen_forward(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    offsets_q: TensorSpec,
    offsets_k: TensorSpec,
    longest_q: Argument,
    longest_k: Argument,
    _dropout: Argument,
    _scale: Argument,
    causal: Argument,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``flash_attn::_flash_attn_varlen_forward``."""
    scores = flash_scores(query, key, value, offsets_q, offsets_k, longest_q, longest_k, causal)
    return forward_work(scores, out_first(query, value))


def library_varlen_backward(
    _gradient: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    _out: Argument,
    _log_sums: Argument,
    _dq: Argument,
    _dk: Argument,
    _dv: Argument,
    offsets_q: TensorSpec,
    offsets_k: TensorSpec,
    longest_q: Argument,
    longest_k: Argument,
    _dropout: Argument,
    _scale: Argument,
    causal: Argument,
    *_: Argument,
    **__: Argument,
) -> Work:
    """``flash_attn::_flash_attn_varlen_backward``."""
    scores = flash_scores(query, key, value, offsets_q, offsets_k, longest_q, longest_k, causal)
    return backward_work(scores, (query, key, value))


def library3_forward(query: TensorSpec, key: TensorSpec, value: TensorSpec, *_: Argument, **named: Argument) -> Work:
    """``flash_attn_3::fwd``: packed with ``cu_seqlens_q``; ``is_causal`` comes by name."""
    causal = named.get("is_causal", False)
    offsets_q, offsets_k = named.get("cu_seqlens_q"), named.get("cu_seqlens_k")
    if not isinstance(offsets_q, TensorSpec) or not isinstance(offsets_k, TensorSpec):
        scores = heads_third(query, key, value, causal=bool(causal), bottom_right=True)
    else:
        longest_q, longest_k = named.get("max_seqlen_q"), named.get("max_seqlen_k")
        scores = flash_scores(query, key, value, offsets_q, offsets_k, longest_q, longest_k, causal)
    return forward_work(scores, out_first(query, value))


OFFSETS = {
    "flash_attn::_flash_attn_varlen_forward": (3, 4),
    "flash_attn::_flash_attn_varlen_backward": (9, 10),
}
"""Where an operator's sequence offsets stand, whose values decide its work."""

FORMULAS = {
    "flash_attn::_flash_attn_forward": library_forward,
    "flash_attn::_flash_attn_backward": library_backward,
    "flash_attn::_flash_attn_varlen_forward": library_varlen_forward,
    "flash_attn::_flash_attn_varlen_backward": library_varlen_backward,
    "flash_attn_3::fwd": library3_forward,
}
