"""A counter's entries: one for all calls with the same operator, shapes, dtypes and scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from whystall.cost import Cost, cost_of
from whystall.cost.spec import TensorSpec, tensors
from whystall.model import specs
from whystall.model.plans import Plan, plan_for


class Entry:
    """One kind of call: an operator with shapes, dtypes and scalars. Its cost is computed on demand."""

    __slots__ = ("_call", "_cost", "_known", "name", "reason", "repeats")

    def __init__(
        self, name: str, args: list[Any], kwargs: dict[str, Any], outputs: list[TensorSpec], reason: str | None = None
    ) -> None:
        self.name = name
        self.reason = reason  # why no formula can hold, where none can
        self._call = (args, kwargs, outputs)
        self._known = False
        self.repeats = False  # whether calls with this signature are all this entry
        self._cost: Cost | None = None

    @property
    def cost(self) -> Cost | None:
        """The cost, or ``None`` where no formula fits."""
        if not self._known and self.reason is None:
            self._cost = cost_of(self.name, *self._call)
            self._known = True
        return self._cost

    @property
    def has_floats(self) -> bool:
        """Whether the call touches floating-point data."""
        return any(spec.is_floating for spec in tensors(list(self._call)))

    @property
    def is_product(self) -> bool:
        """Whether the call is one product, which computes one gradient if it runs in a backward pass."""
        return self.cost is not None and self.cost.model_flops > 0 and not self.cost.weight_flops


def described(plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Entry:
    """The entry of a call that was just made."""
    given, named = specs.describe_all(args, kwargs)
    for place in plan.offsets:
        if place < len(args) and isinstance(args[place], torch.Tensor) and args[place].device.type != "meta":
            given[place] = specs.spec_of(args[place], values=True)
    return Entry(plan.name, given, named, specs.outputs_of(result), specs.why_unknown((*args, *kwargs.values())))


class KnownOperator:
    """An operator that was met: its plan, and the calls of it that were met, by signature."""

    __slots__ = ("action", "call", "entries", "operator", "plan")

    def __init__(self, operator: Any) -> None:
        self.operator = operator  # kept, so that its identity stays taken
        self.plan = plan_for(operator)
        self.action = self.plan.action
        self.call = self.plan.call
        self.entries: dict[tuple[Any, ...], Entry] = {}
