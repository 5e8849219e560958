"""Kernels that a compiler made: the operators in their names, and their bytes.

Inductor calls a kernel ``triton_<category>_fused_<operators>_<number>`` (``cpp_fused_...`` on a CPU), the operators
without overload, each once, in alphabetical order (``torch/_inductor/utils.py``, ``get_fused_kernel_name``). Names of
operators hold underscores themselves, so the text is split where every part is an operator that whystall knows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

from whystall.cost.result import Cost
from whystall.cost.spec import Argument, TensorSpec, tensors

CATEGORIES: Final = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "persistent reduction",
    "for": "foreach",
    "spl": "split scan",
    "tem": "template",
    "unk": "unknown",
}
_NAME: Final = re.compile(
    r"(?:^|_)(?:triton_(?P<category>[a-z]{3})|(?P<cpp>cpp))_fused_(?P<operators>\w*?)_?(?P<number>\d+)$"
)
_MATRIX_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm")
_MOST_FACTORS: Final = 16
_LONGEST: Final = 500  # characters: splitting looks at every pair of underscores
# Operators that read a part of a tensor: the size of their arguments does not show their bytes.
_INDEXING: Final = re.compile(
    r"embedding|index|gather|scatter|slice|select|take|narrow|split|unbind|as_strided|sort|cat$"
)


@dataclass(frozen=True, slots=True)
class FusedName:
    """The parsed name of a compiled kernel; ``unknown`` holds its parts that are no operator whystall knows."""

    category: str
    operators: tuple[str, ...]
    unknown: tuple[str, ...]


def is_fused(kernel: str) -> bool:
    """Whether Inductor named a kernel, which it fused from several operators.

    >>> is_fused("triton_poi_fused_mul_silu_3"), is_fused("aten::silu")
    (True, False)
    """
    return _NAME.search(kernel[:_LONGEST]) is not None


@lru_cache(maxsize=4096)
def fused_name(kernel: str, known: frozenset[str]) -> FusedName | None:
    """The operators that ``kernel`` was fused from, out of ``known``; ``None`` where Inductor did not name it.

    >>> known = frozenset({"_softmax", "add", "bitwise_and"})
    >>> fused_name("triton_per_fused__softmax_add_bitwise_and_3", known).operators
    ('_softmax', 'add', 'bitwise_and')
    """
    match = _NAME.search(kernel[:_LONGEST])
    if match is None:
        return None
    category = "C++" if match["cpp"] else CATEGORIES.get(match["category"], match["category"])
    parts = _split(match["operators"], known)
    return FusedName(
        category,
        tuple(part for part in parts if part in known),
        tuple(part for part in parts if part not in known),
    )


def _split(text: str, known: Collection[str]) -> list[str]:
    """The parts of ``text``: with the fewest unknown characters, then the fewest parts."""
    best: list[tuple[int, int, list[str]] | None] = [None] * (len(text) + 2)
    best[0] = (0, 0, [])
    for start in range(len(text)):
        here = best[start]
        if here is None:
            continue
        unknown, count, parts = here
        ends = [place for place in range(start + 1, len(text)) if text[place] == "_"] + [len(text)]
        for end in ends:
            part = text[start:end]
            if part not in known and end != ends[0]:
                continue
            candidate = (unknown + (0 if part in known else len(part)), count + 1, [*parts, part])
            there = best[end + 1]
            if there is None or candidate[:2] < there[:2]:
                best[end + 1] = candidate
    found = best[len(text) + 1]
    return [] if found is None else found[2]


def fused_cost(
    kernel: str, arguments: Sequence[Argument], known: frozenset[str], products: Collection[str]
) -> Cost | None:
    """The cost of a compiled kernel; ``None`` where its name and arguments do not determine its products.

    A fused kernel of elementwise operators and reductions has no model FLOPs. A template is made around a single matrix
    product: it has that product's FLOPs if its arguments' shapes allow one number only. Other operations are unknown
    and count as 0. Each argument is moved at least once; reads and writes are not recorded, so all count as reads.
    """
    name = fused_name(kernel, known)
    if name is None or name.unknown or not name.operators:
        return None
    held = [operator for operator in name.operators if operator in products]
    flops = 0
    if held or name.category == "template":
        alone = name.category == "template" and len(held) == 1 and held[0] in _MATRIX_PRODUCTS
        found = _product_flops(tensors(list(arguments))) if alone else None
        if found is None:
            return None
        flops = found
    moved: int | None = None
    if not any(_INDEXING.search(operator) for operator in name.operators):
        try:
            moved = sum(spec.nbytes for spec in tensors(list(arguments)))
        except KeyError:
            moved = None
    return Cost(
        model_flops=flops,
        model_flops_causal=flops,
        executed_flops=flops,
        bytes_read=moved,
        bytes_written=None if moved is None else 0,
        kind="matrix" if held else "fused",
    )


def _product_flops(given: Sequence[TensorSpec]) -> int | None:
    """The FLOPs of the only product that these tensors can be factors and result of; ``None`` for none or several.

    Tensors of an epilogue have the result's shape or broadcast to it, so that they allow no other product. Square ones
    allow the same number again.

    >>> _product_flops([TensorSpec((8, 16)), TensorSpec((16, 4)), TensorSpec((4,)), TensorSpec((8, 4))])
    1024
    """
    shapes = [spec.shape for spec in given if len(spec.shape) in {2, 3} and spec.is_floating][:_MOST_FACTORS]
    found = set()
    for one, first in enumerate(shapes):
        for two, second in enumerate(shapes):
            result = (*first[:-1], second[-1])
            fits = first[:-2] == second[:-2] and first[-1] == second[-2]
            others = [shape for place, shape in enumerate(shapes) if place not in {one, two}]
            if one != two and fits and result in others:
                found.add(2 * prod(first) * second[-1])
    return found.pop() if len(found) == 1 else None
