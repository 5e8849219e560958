"""Results of operators for which fake tensors and kernels differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def result_of(name: str, args: Sequence[Any]) -> Tensor | None:
    """The result of a call, for the few operators that need it; ``None`` for all others."""
    rule = _RULES.get(name)
    return None if rule is None else rule(args)


def _grouped_product(args: Sequence[Any]) -> Tensor | None:
    """``_grouped_mm`` in other dtypes than bfloat16: the CPU's kernel takes them, the rule of its shapes does not."""
    left, right, offsets = args[0], args[1], args[2] if len(args) > 2 else None
    if left.dtype is torch.bfloat16:
        return None
    if left.dim() == 2 and right.dim() == 2 and offsets is not None:
        shape: tuple[int, ...] = (offsets.shape[0], left.shape[0], right.shape[1])
    elif left.dim() == 2 or right.dim() == 2:
        shape = (left.shape[-2], right.shape[-1])
    else:
        shape = (left.shape[0], left.shape[1], right.shape[2])
    return torch.empty(shape, dtype=left.dtype, device=left.device)


def _reduced_loss(args: Sequence[Any]) -> Tensor | None:
    """A loss that is averaged or summed: its kernel allocates one value an element and shrinks that to the result."""
    left, right, reduction = args[0], args[1], args[2] if len(args) > 2 else 1
    if not reduction:
        return None
    shape = torch.broadcast_shapes(left.shape, right.shape)
    each = torch.empty(shape, dtype=torch.promote_types(left.dtype, right.dtype), device=left.device)
    return each.as_strided((), ())


_RULES: dict[str, Callable[[Sequence[Any]], Tensor | None]] = {
    "aten::_grouped_mm": _grouped_product,
    "aten::mse_loss": _reduced_loss,
    "aten::smooth_l1_loss": _reduced_loss,
}
