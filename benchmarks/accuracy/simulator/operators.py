"""What an operator is to the simulator: host time around kernels and inner operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.accuracy.simulator.machine import BYTES_PER_ELEMENT, SCALAR_TYPE

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape and dtype of an input."""

    shape: Shape
    dtype: str = "bf16"

    @property
    def elements(self) -> int:
        """How many numbers."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """How many bytes."""
        return self.elements * BYTES_PER_ELEMENT[self.dtype]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a launch makes the device do; ``work_ns`` alone on the device."""

    name: str
    work_ns: int
    grid: tuple[int, int, int] = (264, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    shared_bytes: int = 0
    call: str = "cudaLaunchKernel"
    category: str = "kernel"
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A runtime call that launches nothing, such as ``cudaMalloc``."""

    name: str
    duration_ns: int
    locks: bool = False
    drains: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """A call that waits for what was submitted to the compute stream."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A ``cpu_op``: ``before_ns`` of host time, then the body, then ``after_ns``."""

    name: str
    inputs: tuple[Tensor | None, ...] = ()
    body: tuple[Operator | Kernel | Call | Sync, ...] = ()
    before_ns: int = 1_300
    after_ns: int = 700
    concrete: tuple[str, ...] | None = None
    differentiable: bool = False
    """Has a sequence number that its backward operator shares."""

    def arguments(self) -> dict[str, Any]:
        """Shapes and types as recorded by ``record_shapes=True``."""
        if not self.inputs:
            return {}
        return {
            "Concrete Inputs": list(self.concrete) if self.concrete else ["" for _ in self.inputs],
            "Input type": ["Scalar" if each is None else SCALAR_TYPE[each.dtype] for each in self.inputs],
            "Input Strides": [[] if each is None else _strides(each.shape) for each in self.inputs],
            "Input Dims": [[] if each is None else list(each.shape) for each in self.inputs],
        }


def _strides(shape: Shape) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def view(name: str, *inputs: Tensor) -> Operator:
    """An operator that launches nothing."""
    return Operator(name, inputs, before_ns=600, after_ns=300)


def leaf(
    name: str,
    inputs: tuple[Tensor | None, ...],
    kernel: Kernel,
    *,
    concrete: tuple[str, ...] | None = None,
    **more: Any,
) -> Operator:
    """An operator with one launch."""
    return Operator(name, inputs, (kernel,), before_ns=4_300, after_ns=1_200, concrete=concrete, **more)


def wrap(name: str, inputs: tuple[Tensor | None, ...], *body: Operator, **more: Any) -> Operator:
    """An operator that calls others."""
    return Operator(name, inputs, body, **more)


def backward_of(name: str, *body: Operator) -> tuple[str, Operator]:
    """What the autograd engine records around the backward function ``name``."""
    return name, Operator(
        f"autograd::engine::evaluate_function: {name}",
        body=(Operator(name, body=body, before_ns=1_000, after_ns=600),),
        before_ns=900,
        after_ns=700,
    )


def item() -> Operator:
    """``loss.item()``: four bytes to the host, then a wait."""
    scalar = Tensor((), "fp32")
    copy = Kernel("Memcpy DtoH (Device -> Pinned)", 1_400, category="gpu_memcpy", bytes=4)
    inner = Operator("aten::_local_scalar_dense", (scalar,), (copy, Sync()), 1_500, 700)
    return Operator("aten::item", (scalar,), (inner,), 900, 400)


def to_device(tensor: Tensor, name: str, duration_ns: int, *, waits: bool) -> Operator:
    """``tensor.to("cuda")``, or back; a copy of pageable memory waits."""
    copy = Kernel(name, duration_ns, category="gpu_memcpy", bytes=tensor.bytes)
    body = (copy, Sync()) if waits else (copy,)
    inner = Operator("aten::copy_", (tensor, tensor, None), body, 2_000, 800)
    return wrap("aten::to", (tensor, None, None), wrap("aten::_to_copy", (tensor, None), inner))
