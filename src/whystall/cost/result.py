"""The cost of one call of an operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from whystall.cost.spec import TensorSpec

Kind = Literal[
    "matrix",
    "convolution",
    "attention",
    "recurrent",
    "elementwise",
    "normalisation",
    "reduction",
    "optimizer",
    "fourier",
    "memory",
    "view",
    "communication",
    "composite",
    "fused",
    "other",
]


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of one call. One multiply-accumulate is two FLOPs.

    ``model_flops`` are those of matrix products, convolutions, recurrences and attention with every position of the
    score matrix; ``model_flops_causal`` leave out the half that a causal kernel masks. ``executed_flops`` add
    recomputation in a kernel (a fused attention's backward pass recomputes its scores). ``elementwise_ops`` is all the
    other arithmetic. ``weight_flops`` is the part of ``model_flops`` spent on a weight's gradient where one call
    computes several gradients. A byte count is ``None`` where the tensors are not known. ``outputs`` are the tensors
    that the call writes, as far as its formula has them.
    """

    model_flops: int = 0
    model_flops_causal: int = 0
    executed_flops: int = 0
    elementwise_ops: int = 0
    bytes_read: int | None = 0
    bytes_written: int | None = 0
    kind: Kind = "other"
    weight_flops: int = 0
    outputs: tuple[TensorSpec, ...] | None = field(default=None, compare=False, repr=False)

    @property
    def all_flops(self) -> int:
        """Every arithmetic operation: the executed FLOPs and the elementwise ones."""
        return self.executed_flops + self.elementwise_ops


class Work(NamedTuple):
    """A formula's result for a call; the registry adds the bytes.

    ``causal`` and ``executed`` default to ``flops``. ``outputs`` are the tensors written, for recorded calls, which
    name only inputs, and for operators that return nothing and write in place; ``read`` and ``written`` replace the
    bytes of inputs and outputs where an operator touches less or more than these.
    """

    flops: int = 0
    elementwise: int = 0
    kind: Kind = "other"
    outputs: tuple[TensorSpec, ...] | None = None
    causal: int | None = None
    executed: int | None = None
    read: int | None = None
    written: int | None = None
    weight_flops: int = 0
