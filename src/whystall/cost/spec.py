"""Arguments of an operator without any framework: the one description that live calls and traces share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

BITS = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "uint16": 16,
    "int16": 16,
    "uint32": 32,
    "int32": 32,
    "uint64": 64,
    "int64": 64,
    "float4_e2m1fn_x2": 8,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
    "complex32": 32,
    "complex64": 64,
    "complex128": 128,
    "qint8": 8,
    "quint8": 8,
    "qint32": 32,
}
"""Bits of one element in memory, by dtype; sub-byte dtypes that torch packs are counted as stored."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as an operator's cost sees it: shape, dtype, and strides where they are known.

    ``values`` holds the elements of a small integer tensor that decides the amount of work (sequence offsets).

    >>> TensorSpec((4, 8), "bfloat16").nbytes
    64
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    strides: tuple[int, ...] | None = None
    values: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        """The elements that the tensor shows."""
        return prod(self.shape)

    @property
    def item_bits(self) -> int:
        """The bits of one element. Raises ``KeyError`` for a dtype that has no entry in ``BITS``."""
        return BITS[self.dtype]

    @property
    def stored(self) -> int:
        """The elements that lie in memory: an expanded dimension (stride 0) is stored once."""
        if self.strides is None:
            return self.numel
        return prod(size for size, stride in zip(self.shape, self.strides, strict=False) if stride or not size)

    @property
    def nbytes(self) -> int:
        """The bytes that lie in memory."""
        return self.stored * self.item_bits // 8

    @property
    def is_floating(self) -> bool:
        """Whether the elements are real or complex floating-point numbers."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


Argument: TypeAlias = "TensorSpec | bool | int | float | str | Sequence[Argument] | None"


def tensors(arguments: object) -> list[TensorSpec]:
    """Every tensor in ``arguments``, those in (nested) lists and mappings included."""
    if isinstance(arguments, TensorSpec):
        return [arguments]
    if isinstance(arguments, dict):
        return [one for value in arguments.values() for one in tensors(value)]
    if isinstance(arguments, (list, tuple)):
        return [one for value in arguments for one in tensors(value)]
    return []


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that ``shapes`` broadcast to.

    >>> broadcast((8, 1), (3, 1, 4))
    (3, 8, 4)
    """
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))
