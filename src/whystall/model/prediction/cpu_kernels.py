"""Temporary memory of the CPU's kernels, beside their results: reorders of oneDNN, casts to a common dtype.

The sizes were read from torch 2.13's own memory events (AVX-512, two threads, 2026-11-23); scratch space below a
percent of a kernel's tensors is left out. Other processors and versions choose other kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_HALVES = (torch.bfloat16, torch.float16)
_CHANNELS_OF_A_BLOCK = 16  # with AVX-512; inputs of fewer channels are read as they are


def temporary_bytes(name: str, args: Sequence[Any], _kwargs: Mapping[str, Any], result: Any) -> int:
    """The bytes that a call allocates and frees again beyond its results."""
    rule = _RULES.get(name)
    return 0 if rule is None else rule(args, result)


def _n_bytes(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _is_blocked(tensor: Tensor) -> bool:
    """Whether oneDNN reorders a tensor into its own layout: it reads channels-last ones in place."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return last is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=last)


def _blocked_bytes(tensor: Tensor) -> int:
    """The bytes of a tensor in oneDNN's layout, whose channels come in blocks."""
    channels = max(tensor.shape[1], 1)
    padded = -(-channels // _CHANNELS_OF_A_BLOCK) * _CHANNELS_OF_A_BLOCK
    return int(_n_bytes(tensor) // channels * padded)


def _input_reorder(given: Tensor) -> int:
    if given.dtype in _HALVES:
        return _n_bytes(given)
    return _blocked_bytes(given) if given.shape[1] >= _CHANNELS_OF_A_BLOCK else 0


def _convolution(args: Sequence[Any], result: Any) -> int:
    given, weight, transposed, groups = args[0], args[1], args[6], args[8]
    if not _is_blocked(given):
        return _n_bytes(weight)
    plain, blocked = _n_bytes(result), _blocked_bytes(result)
    copied_twice = transposed or (given.dtype in _HALVES and groups == 1)
    computing = _input_reorder(given) + _n_bytes(weight) + blocked - plain
    return max(computing, blocked + (plain if copied_twice else 0))


def _padded_groups_bytes(weight: Tensor, groups: int) -> int:
    """The gradient of a depthwise weight beyond three by three: each group fills a block of channels."""
    if groups == 1 or weight.shape[0] != groups or weight.shape[1] != 1 or max(weight.shape[2:]) <= 3:
        return 0
    return _n_bytes(weight) * _CHANNELS_OF_A_BLOCK**2


def _convolution_backward(args: Sequence[Any], _result: Any) -> int:
    gradient, given, weight, stride, groups, wants = args[0], args[1], args[2], args[4], args[9], args[10]
    if not _is_blocked(given):
        return _n_bytes(weight) + max(_n_bytes(weight), _padded_groups_bytes(weight, groups))
    of_weight = _blocked_bytes(gradient) + _input_reorder(given)
    copied_twice = groups == 1 and (given.dtype in _HALVES or max(stride) > 1)
    if not wants[0] or not copied_twice:
        return of_weight
    return max(of_weight, 2 * _n_bytes(given) - _n_bytes(weight))


def _product(second: int) -> Callable[[Sequence[Any], Any], int]:
    """A product of halves packs its second factor."""

    def rule(args: Sequence[Any], _result: Any) -> int:
        factor = args[second]
        return _n_bytes(factor) if factor.dtype in _HALVES and factor.dim() == 2 else 0

    return rule


def _promoted(args: Sequence[Any], result: Any) -> int:
    """Operands of another dtype are cast to the common one first."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    common = result.dtype if result.dtype is not torch.bool else None
    for one in tensors:
        if one.dim() and common is None:
            common = one.dtype
    if common is None or not common.is_floating_point:
        return 0
    return sum(one.numel() * common.itemsize for one in tensors if one.dim() and one.dtype is not common)


def _mean(args: Sequence[Any], _result: Any) -> int:
    return args[0].numel() * 4 if args[0].dtype in _HALVES else 0


def _sum(args: Sequence[Any], result: Any) -> int:
    return args[0].numel() * result.element_size() if args[0].dtype is not result.dtype else 0


def _attention(args: Sequence[Any], _result: Any) -> int:
    return _n_bytes(args[1]) + _n_bytes(args[2]) if args[0].dtype in _HALVES else 0


def _loss(args: Sequence[Any], result: Any) -> int:
    """One value an element before they are averaged, beside the result."""
    return 0 if result.dim() else max(_n_bytes(args[0]), _n_bytes(args[1]))


_ELEMENTWISE = ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "rsub", "addcmul", "lerp")

_RULES: dict[str, Callable[[Sequence[Any], Any], int]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::mm": _product(1),
    "aten::addmm": _product(2),
    **{f"aten::{name}": _promoted for name in _ELEMENTWISE},
    "aten::mean": _mean,
    "aten::mse_loss": _loss,
    "aten::smooth_l1_loss": _loss,
    "aten::sum": _sum,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
}
