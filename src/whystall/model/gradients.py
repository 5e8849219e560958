"""Which gradient a product in the backward pass computes: an input's or a weight's.

A product's backward node computes the gradients of its two factors in an order that is always the same. A factor is a
weight if its edge leads to a parameter through views and casts alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

FACTORS = {
    "MmBackward0": (1, 0),
    "BmmBackward0": (1, 0),
    "GroupedMmBackward0": (1, 0),
    "AddmmBackward0": (1, 2),
    "BaddbmmBackward0": (1, 2),
    "MvBackward0": (1,),  # the matrix's gradient is an outer product, elementwise
    "AddmvBackward0": (2,),
}
"""Which inputs' gradients a node computes by products, in its own order (torch/csrc/autograd/generated)."""

LOOKS_THROUGH = frozenset(
    f"{name}Backward{number}"
    for name in (
        "T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "ToCopy", "Unsqueeze", "Squeeze",
        "AsStrided", "Clone", "Alias", "Select", "Slice", "Split", "SplitWithSizes", "Unbind", "Chunk", "Detach",
        "Div", "WeightNormInterface",  # a weight that is normalised (by its own norm, spectrally) is one all the same
    )
    for number in (0, 1)
)  # fmt: skip


def is_weight_gradient(node: Any, ordinal: int) -> bool | None:
    """Whether product number ``ordinal`` of ``node`` computes a weight's gradient; ``None`` where it is unknown."""
    places = FACTORS.get(node.name())
    if places is None:
        return None
    edges = node.next_functions
    wanted = [edges[place][0] for place in places if place < len(edges) and edges[place][0] is not None]
    if not wanted or ordinal >= len(wanted):
        return None
    return _leads_to_parameter(wanted[ordinal])


def _leads_to_parameter(node: Any) -> bool | None:
    """``None`` for a leaf of torch.func's: its parameters and its inputs look alike."""
    while node is not None:
        name = node.name()
        if name.endswith("AccumulateGrad"):
            wrapped = torch._C._functorch.is_functorch_wrapped_tensor(node.variable)  # noqa: SLF001 - has no public name
            return None if wrapped else isinstance(node.variable, nn.Parameter)
        if name not in LOOKS_THROUGH:
            return False
        node = node.next_functions[0][0]
    return False
