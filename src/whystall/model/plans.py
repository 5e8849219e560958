"""Plans for the dispatcher's operators, made once each: count it, take it apart, or let it pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import torch

from whystall.cost import attention, kind_of


class Action(IntEnum):
    """How a call is treated."""

    PASS = 0
    COUNT = 1
    DECOMPOSE = 2
    REFUSE = 3


QUESTIONS = frozenset(
    f"aten::{name}" for name in ("size", "stride", "storage_offset", "numel", "dim", "layout", "is_contiguous")
) | {"prim::device", "prim::layout", "aten::is_strides_like_format", "aten::is_non_overlapping_and_dense"}
"""Queries that a tensor without data answers by itself (torch.utils.flop_counter refuses the same)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The treatment of one operator: ``call`` runs it by the shortest way."""

    action: Action
    name: str
    call: Callable[..., Any]
    offsets: tuple[int, ...] = ()


@cache
def plan_for(operator: Any) -> Plan:
    """The plan for an ``OpOverload`` or a higher-order operator."""
    if not isinstance(operator, torch._ops.OpOverload):  # noqa: SLF001 - the class of what a dispatch mode receives
        return Plan(Action.COUNT, f"higher_order::{operator.name()}", operator)
    name = operator._schema.name  # noqa: SLF001 - the name without overload has no public accessor
    if name in QUESTIONS or name.startswith(("aten::sym_", "prim::")):
        return Plan(Action.REFUSE, name, operator)
    kind = kind_of(name)
    if kind == "view" or (operator.is_view and kind is None):
        return Plan(Action.PASS, name, operator._op)  # noqa: SLF001 - skips a Python frame
    if kind in {None, "composite"} and _has_composite_kernel(operator):
        return Plan(Action.DECOMPOSE, name, operator.decompose)
    return Plan(Action.COUNT, name, operator._op, attention.OFFSETS.get(name, ()))  # noqa: SLF001 - likewise


def _has_composite_kernel(operator: Any) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - as torch.utils.flop_counter asks
    return bool(operator.has_kernel_for_dispatch_key(key))
