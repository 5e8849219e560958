"""The cost of an operator: FLOPs, elementwise operations and bytes, from its name, shapes, dtypes and scalars.

One registry serves live calls, fake tensors and recorded traces; it knows nothing of torch, traces or modules.
"""

from __future__ import annotations

from whystall.cost.recorded import recorded_cost
from whystall.cost.registry import cost_of, kind_of, reason, register, unregister
from whystall.cost.result import Cost, Kind, Work
from whystall.cost.spec import TensorSpec

__all__ = [
    "Cost",
    "Kind",
    "TensorSpec",
    "Work",
    "cost_of",
    "kind_of",
    "reason",
    "recorded_cost",
    "register",
    "unregister",
]
