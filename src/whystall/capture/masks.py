"""Rows that operators make and a mask then throws away: each expert on all tokens, both sides of a condition.

The mask shows the rows that are read; operators that made them row by row need not have made the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

# Operators each of whose rows comes from the same input row, beside those that torch calls pointwise.
_BY_ROWS: Final = frozenset({
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::native_layer_norm",
    "aten::_softmax", "aten::_log_softmax", "aten::native_dropout", "aten::embedding", "aten::clone", "aten::_to_copy",
    "aten::stack",
})  # fmt: skip
# With more rows read, the masked ones are padding, or a path that is dropped occasionally.
MOST_READ: Final = 0.6


class Rows(NamedTuple):
    """A number of rows, and the share of them that is read."""

    number: int
    read: float


def masks_of(torch: Any, name: str, given: Sequence[Any]) -> list[tuple[Any, Rows]]:
    """The tensors of which an operator reads only some rows, by a mask over rows."""
    if name == "aten::where" and len(given) > 2:
        mask, here, there = given[:3]
        rows = _rows(torch, mask, here)
        if rows is None:
            return []
        return [(here, rows), (there, Rows(rows.number, 1 - rows.read))]
    if name == "aten::masked_fill" and len(given) > 2:
        rows = _rows(torch, given[1], given[0])
        return [] if rows is None else [(given[0], Rows(rows.number, 1 - rows.read))]
    if name == "aten::mul" and len(given) > 1:
        for mask, of in (given[:2], given[1::-1]):
            rows = _rows(torch, mask, of)
            if rows is not None:
                return [(of, rows)]
    return []


def _rows(torch: Any, mask: Any, of: Any) -> Rows | None:
    """The rows of a tensor that a mask keeps; ``None`` where it is no mask, or has an element for each number."""
    tensors = isinstance(mask, torch.Tensor) and isinstance(of, torch.Tensor)
    if not tensors or mask.dim() != of.dim() or mask.dim() < 2:
        return None
    if mask.shape[-1] != 1 or of.shape[-1] == 1 or mask.shape[:-1] != of.shape[:-1]:
        return None
    count = mask.numel()
    return Rows(count, int(torch.count_nonzero(mask)) / count) if count else None


def joined_in(name: str, given: Sequence[Any]) -> int:
    """The number of tensors whose rows an operator puts side by side; one where it does something else."""
    return len(given[0]) if name == "aten::stack" and given and isinstance(given[0], list | tuple) else 1


def by_rows(torch: Any, function: Any, name: str) -> bool:
    """Whether each row of an operator's result comes from one row of its input."""
    return name in _BY_ROWS or torch.Tag.pointwise in function.tags


def has_rows(shape: Sequence[int], count: int) -> bool:
    """Whether the first dimensions of a shape, all but the last at most, hold ``count`` rows."""
    return any(math.prod(shape[:upto]) == count for upto in range(1, len(shape)))


def read_of(
    writes: Sequence[int],
    shape: Sequence[int],
    readers: Mapping[int, Sequence[int]],
    of_reader: Callable[[int, int], Rows | None],
) -> Rows | None:
    """The rows of a call's result that are read; ``None`` where all are, or where it is unknown.

    ``readers`` has the calls that read each storage, ``of_reader`` the rows that one of them reads.
    """
    found = [of_reader(reader, address) for address in writes for reader in readers.get(address, ())]
    rows = [one for one in found if one is not None and has_rows(shape, one.number)]
    if not rows or len(rows) < len(found) or len({one.number for one in rows}) > 1:
        return None
    return max(rows, key=lambda one: one.read)
