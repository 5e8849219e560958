"""Rows that are alike within one call: a series that is encoded for each path drawn from it, a query for each item.

What is repeated on purpose lies in an order: each row several times in a row (``repeat_interleave``), or all rows again
and again (``repeat``, ``expand``). Other rows may be alike by chance, and count only where a module is given the very
same numbers in each step (a table of few distinct offsets).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final

from whystall.capture.sums import sizes_of_rows, tensors_in

_MOST_ROWS: Final = 1 << 13
_MOST_BYTES: Final = 8 << 20
_LEAST_FLOATS: Final = 2
_LEAST_WHOLES: Final = 8
_LEAST: Final = 0.5
"""Of the rows so many are there before."""
_NEARLY_ALL: Final = 0.98
_ALIKE: Final = 1e-4
_ASKED: Final = 2
"""So often a module is asked that is given rows of such a shape which differ."""
_BATCHES: Final = 2
"""So many tensors of a call are looked through."""


class AlikeRows:
    """Which share of the rows that modules are given, and of what they make of them, is there before."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._different: Counter[tuple[object, ...]] = Counter()

    def share(self, module: int, given: object, output: object, *, constant: bool) -> float:
        """The share of a call's rows that are as rows before them; ``constant``: all of it came in a call before."""
        torch, most = self._torch, 0.0
        for tensor in [one for one in tensors_in(torch, given) if one.dim() > 1][:_BATCHES]:
            asked = (module, *tensor.shape)
            if self._different[asked] < _ASKED:
                share = self._share_of(tensor, output, constant=constant)
                self._different[asked] += share == 0
                most = max(most, share)
        return most

    def _share_of(self, tensor: Any, output: object, *, constant: bool) -> float:
        torch = self._torch
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
        if not plain or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
            return 0.0
        for places in (1, tensor.dim() - 1) if tensor.is_floating_point() and tensor.dim() > 2 else (1,):
            rows = _rows(torch, tensor, places)
            again = _again(rows, constant=constant, samples=places == 1)
            if again and _same(again, sizes_of_rows(torch, output, tensor.shape[:places])):
                return len(again) / len(rows)
        return 0.0


def _rows(torch: Any, tensor: Any, places: int) -> list[int]:
    """A sum of each row, where the first so many dimensions count them; a row of one number is like no other."""
    count = prod(tensor.shape[:places])
    least = _LEAST_FLOATS if tensor.is_floating_point() else _LEAST_WHOLES
    if not 1 < count <= _MOST_ROWS or tensor.numel() < least * count:
        return []
    if tensor.numel() * tensor.element_size() > _MOST_BYTES:
        return []
    with torch.no_grad():
        flat = tensor.detach().reshape(count, -1).contiguous()
        empty = (flat == flat[:, :1]).all(1).tolist() if tensor.is_floating_point() else [False] * count
        sums = [zlib.crc32(row) for row in flat.view(torch.uint8).numpy()]
    return [-1 - at if none else found for at, (found, none) in enumerate(zip(sums, empty, strict=True))]


def _again(rows: Sequence[int], *, constant: bool, samples: bool) -> dict[int, int]:
    """Of rows that are there before where they were first; none unless they are repeated on purpose.

    >>> _again([7, 7, 8, 8, 9, 9, 9], constant=False, samples=True)
    {1: 0, 3: 2, 5: 4, 6: 4}
    >>> _again([7, 8, 7, 8, 7, 8], constant=False, samples=True)
    {2: 0, 3: 1, 4: 0, 5: 1}
    >>> _again([7, 8, 8, 7, 7, 8], constant=False, samples=True)
    {}
    """
    first: dict[int, int] = {}
    again = {at: first[row] for at, row in enumerate(rows) if first.setdefault(row, at) != at}
    if len(again) < _LEAST * len(rows):
        return {}
    # Of frames behind each other most are perhaps what pads their sequences.
    if not samples and 2 * (max(Counter(again.values()).values()) + 1) > len(rows):
        return {}
    in_a_row = 1 + sum(a != b for a, b in pairwise(rows)) == len(first)
    around = all(row == rows[at % len(first)] for at, row in enumerate(rows))
    return again if constant or in_a_row or around else {}


def _same(again: dict[int, int], sizes: Sequence[float]) -> bool:
    """Whether what is made of rows that are alike is alike: chance, and rows beside them, change it."""
    if not sizes:
        return False
    alike = sum(abs(sizes[at] - sizes[first]) <= _ALIKE * abs(sizes[first]) for at, first in again.items())
    return alike >= _NEARLY_ALL * len(again)
