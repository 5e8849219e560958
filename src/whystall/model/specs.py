"""Turns a dispatcher call into the description that costs are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from whystall.cost.spec import Argument, TensorSpec

Tensor = torch.Tensor
Parameter = torch.nn.Parameter


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """The dtype without its module: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def why_unknown(values: Sequence[Any]) -> str | None:
    """Why no formula holds for a call with these arguments: the formulas are those of dense tensors."""
    for value in values:
        if isinstance(value, Tensor) and value.layout in SPARSE:
            return "its work depends on how many elements a sparse tensor has"
        if isinstance(value, Tensor) and value.is_nested:
            return "its work depends on the lengths in a nested tensor"
        if isinstance(value, (list, tuple)) and (reason := why_unknown(value)):
            return reason
    return None


def spec_of(tensor: torch.Tensor, *, values: bool = False) -> TensorSpec:
    """The description of ``tensor``; ``values`` adds its elements (this synchronises)."""
    if tensor.is_nested:
        return TensorSpec((tensor.numel(),), dtype_name(tensor.dtype), None)
    strided = tensor.layout is torch.strided
    return TensorSpec(
        tuple(int(size) for size in tensor.shape),
        dtype_name(tensor.dtype),
        tuple(int(step) for step in tensor.stride()) if strided else None,
        tuple(tensor.tolist()) if values else None,
    )


def describe(value: Any) -> Argument:
    """``value`` with a ``TensorSpec`` for each tensor and a name for each dtype."""
    if isinstance(value, Tensor):
        return spec_of(value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, (list, tuple)):
        return [describe(one) for one in value]
    if isinstance(value, torch.SymInt):
        return int(value)
    return value if isinstance(value, (bool, int, float, str)) else None


def describe_all(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Argument], dict[str, Argument]]:
    """Positional and named arguments, described."""
    return [describe(one) for one in args], {name: describe(one) for name, one in kwargs.items()}


def outputs_of(result: Any) -> list[TensorSpec]:
    """The tensors that an operator returned."""
    if isinstance(result, Tensor):
        return [spec_of(result)]
    if isinstance(result, (list, tuple)):
        return [spec for one in result for spec in outputs_of(one)]
    return []


def signature(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """A key that is equal for calls of one operator that cost the same: shapes, dtypes, strides and scalars.

    This runs for every operator of the user's job: it is flat and allocates as little as possible.
    """
    key: list[Any] = []
    for value in args:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            key += (value.shape, value.dtype, value.stride())
        elif kind is list or kind is tuple:
            key.append(_nested(value))
        elif isinstance(value, Tensor):
            key += (tuple(value.shape), value.dtype, _steps(value))
        elif kind is torch.SymInt:
            key.append(int(value))
        else:
            key.append(value)
    if kwargs:
        for name, value in kwargs.items():
            key += (name, _nested((value,)))
    return tuple(key)


def _steps(tensor: torch.Tensor) -> tuple[int, ...] | None:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else None


def _nested(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (tuple(value.shape), value.dtype, _steps(value))
        if isinstance(value, Tensor)
        else _nested(value)
        if isinstance(value, (list, tuple))
        else value
        for value in values
    )
