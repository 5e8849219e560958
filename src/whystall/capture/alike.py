"""Equal rows within one call: a series that is encoded for each path drawn from it, a query for each item.

Intended repetition has an order: each row several times in a row (``repeat_interleave``), or all rows again and again
(``repeat``, ``expand``). Other rows may be equal by chance, and count only where a module receives the very same
numbers in each step (a table of few distinct offsets). A row is the whole input of a call for one index.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import islice, pairwise
from math import prod
from typing import Any, Final

from whystall.capture.faults import is_the_jobs
from whystall.capture.readable import is_readable
from whystall.capture.sums import bytes_of, stands_for_others, tensors_in
from whystall.capture.the_jobs import parts_of

_MOST_ROWS: Final = 1 << 13
_MOST_BYTES: Final = 32 << 20
_MOST_OF_OUTPUT: Final = 1 << 20
"""Number of output elements to compare."""
_LEAST_FLOATS: Final = 2
_LEAST_WHOLES: Final = 8
_LEAST: Final = 0.5
"""Minimum share of the rows that occurred before."""
_FEW_TWICE: Final = 1.25
"""Equal rows may also occur apart, such as a user twice in a batch: most runs of equal rows for each distinct row."""
_ALIKE: Final = 1e-4
_ALIKE_HALF: Final = 5e-3
_ASKED: Final = 2
"""How often in a row a module is tried with rows of a shape that differ."""
_MOST_TENSORS: Final = 8
_LARGEST: Final = 32
"""Largest ratio of the output to the compared elements."""
_SINGLE: Final = 4
"""Bytes of a number in single precision."""
# Modules that make each output row from one input row alone.
_ROW_BY_ROW: Final = frozenset({"Linear", "Identity", "LayerNorm", "RMSNorm", "Embedding", "Dropout", "Sequential"})


class AlikeRows:
    """The share of the modules' input rows, and of their result rows, that occurred before."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._different: Counter[tuple[object, ...]] = Counter()
        self._deaf = False

    def share(self, module: Any, given: object, output: object, *, constant: bool) -> float:
        """The share of a call's rows that are as rows before them; ``constant``: all of it came in a call before."""
        if self._deaf or stands_for_others(self._torch):
            return 0.0
        try:
            return self._share(module, given, output, constant=constant)
        except Exception as error:
            if is_the_jobs(error):
                raise
            self._deaf = True
            return 0.0

    def _share(self, module: Any, given: object, output: object, *, constant: bool) -> float:
        torch = self._torch
        tensors = list(islice((one for one in tensors_in(torch, given) if one.dim() > 0), _MOST_TENSORS))
        first = next((one for one in tensors if one.dim() > 1), None)
        if first is None:
            return 0.0
        asked = (id(module), *first.shape)
        if self._different[asked] >= _ASKED:
            return 0.0
        self._different[asked] += 1
        for places in sorted({1, 2, first.dim() - 1}) if first.is_floating_point() else (1,):
            if places >= first.dim():
                continue
            rows = _rows(torch, tensors, first.shape[:places])
            again = _again(rows, constant=constant, samples=places == 1)
            if not again or not (_is_even(rows) or _keeps_rows_apart(module, samples=places == 1)):
                continue
            made = [one for one in tensors_in(torch, output) if one.shape[:places] == first.shape[:places]]
            made = [one for one in made if one.is_floating_point()]
            if made and all(_is_alike(torch, one, again, len(rows)) for one in made):
                self._different[asked] = 0
                return len(again) / len(rows)
        return 0.0


def _rows(torch: Any, tensors: Sequence[Any], shape: Sequence[int]) -> list[int]:
    """A sum of each row of all tensors with these first sizes; a row of one number equals no other."""
    count = prod(shape)
    beside = [one for one in tensors if one.shape[: len(shape)] == shape]
    size = sum(one.numel() * one.element_size() for one in beside)
    if not 1 < count <= _MOST_ROWS or size > _MOST_BYTES or not all(_is_plain(torch, one) for one in beside):
        return []
    sums, nothing, long = [0] * count, torch.ones(count, dtype=torch.bool), False
    with torch.no_grad():
        for one in beside:
            flat = one.detach().resolve_neg().reshape(count, -1).contiguous()
            numbers = flat.shape[1]
            long |= numbers >= (_LEAST_FLOATS if one.is_floating_point() else _LEAST_WHOLES)
            if numbers > 1:
                nothing &= (flat == flat[:, :1]).all(1)
            held, each = bytes_of(flat), numbers * flat.element_size()
            sums = [zlib.crc32(held[at * each : (at + 1) * each], found) for at, found in enumerate(sums)]
    if not long:
        return []
    return [-1 - at if none else found for at, (found, none) in enumerate(zip(sums, nothing.tolist(), strict=True))]


def _is_plain(torch: Any, tensor: Any) -> bool:
    known = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    plain = known and tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_complex()
    return plain and is_readable(tensor)


def _again(rows: Sequence[int], *, constant: bool, samples: bool) -> dict[int, int]:
    """The first occurrence of each row that occurred before; none unless rows repeat on purpose.

    >>> _again([7, 7, 8, 8, 9, 9, 9], constant=False, samples=True)
    {1: 0, 3: 2, 5: 4, 6: 4}
    >>> _again([7, 8, 7, 8, 7, 8], constant=False, samples=True)
    {2: 0, 3: 1, 4: 0, 5: 1}
    >>> _again([7, 8, 8, 7, 7, 8], constant=False, samples=True)
    {}
    """
    first: dict[int, int] = {}
    again = {at: first[row] for at, row in enumerate(rows) if first.setdefault(row, at) != at}
    if not rows or len(again) < _LEAST * len(rows):
        return {}
    # A row that most are equal to may be padding: frames of a sequence, boxes of a picture.
    if not (samples and _is_even(rows)) and 2 * max(Counter(rows).values()) > len(rows):
        return {}
    in_a_row = 1 + sum(a != b for a, b in pairwise(rows)) <= _FEW_TWICE * len(first)
    around = all(row == rows[at % len(first)] for at, row in enumerate(rows))
    return again if constant or in_a_row or around else {}


def _is_even(rows: Sequence[int]) -> bool:
    """Whether all rows are equally frequent: then code that weighs rows against each other weighs them alike."""
    return len(set(Counter(rows).values())) == 1


def _keeps_rows_apart(module: Any, *, samples: bool) -> bool:
    """Whether no row of a call changes another; samples do so in training alone, by statistics over the batch."""
    if samples and not module.training:
        return True
    kinds = [(type(part).__module__, type(part).__name__) for part in parts_of(module)]
    activations = "torch.nn.modules.activation"
    return all(
        file.startswith("torch.nn.modules.")
        and (name in _ROW_BY_ROW or (file == activations and name != "MultiheadAttention"))
        for file, name in kinds
    )


def _is_alike(torch: Any, made: Any, again: dict[int, int], count: int) -> bool:
    """Whether equal rows have equal results, and different rows do not."""
    if not _is_plain(torch, made) or not made.numel() or made.numel() > _MOST_OF_OUTPUT * _LARGEST:
        return False
    with torch.no_grad():
        flat = made.detach().reshape(count, -1)
        some = flat[:, :: (made.numel() // _MOST_OF_OUTPUT) | 1].double()
        weights = torch.randn(some.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        sums, sizes = some @ weights, some.norm(dim=1)
        within = (_ALIKE if made.element_size() >= _SINGLE else _ALIKE_HALF) * sizes
        at = torch.tensor(list(again))
        first = torch.tensor(list(again.values()))
        alike = bool(((sums[at] - sums[first]).abs() <= within[first]).all())
        others = len(set(again.values())) > 1
        return alike and not (others and bool((sums - sums[0]).abs().max() <= within.max()))
