"""The content of inputs of products and losses: matrices that are nearly all zeros, labels that count."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from whystall.run_folder.observations import MOST_SPARSE, CountedLabels, SparseMatrix

_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm"})
# The class dimension is the same for both: the second of the scores.
_LOSSES: Final = frozenset({"aten::nll_loss_forward", "aten::nll_loss2d_forward"})
_MATRIX: Final = 2
_LARGE: Final = 1 << 16
"""Entries of a matrix whose zeros are counted, and of scores whose labels are."""
_MOST_COUNTED: Final = 1 << 25
_MOST_DENSE: Final = 0.1
_MOST_SIZES: Final = 64
_COUNTS: Final = 3
"""How often the zeros or labels of a size are counted: they may differ from step to step."""

Size = tuple[int, int]


class Contents:
    """Counts, of each size a few times."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._filled: defaultdict[Size, list[float]] = defaultdict(list)
        self._labels: defaultdict[Size, list[float]] = defaultdict(list)

    def sparse(self) -> list[SparseMatrix]:
        """The sizes of matrices that were nearly all zeros each time."""
        most = [(max(shares), size) for size, shares in self._filled.items() if shares]
        told = [(share, size) for share, size in most if 0 < share <= _MOST_DENSE]
        return [SparseMatrix(*size, share) for share, size in sorted(told)[:MOST_SPARSE]]

    def labels(self) -> list[CountedLabels]:
        """The sizes of scores some of whose labels are ignored, and the mean share of labels that count."""
        told = [(sum(shares) / len(shares), size) for size, shares in self._labels.items()]
        return [CountedLabels(*size, share) for share, size in sorted(told)[:MOST_SPARSE] if 0 < share < 1]

    def note(self, name: str, given: tuple[Any, ...], *, zeros: bool) -> None:
        """Records an operator's tensors; ``zeros``: whether to count zeros in them."""
        if zeros and name in _PRODUCTS:
            for one in given:
                if isinstance(one, self._torch.Tensor):
                    self._count_zeros(one)
        elif name in _LOSSES:
            self._count_labels(*given[:5])

    def _count_zeros(self, matrix: Any) -> None:
        torch = self._torch
        if matrix.dim() != _MATRIX or matrix.layout is not torch.strided:
            return
        size = tuple(matrix.shape)
        large = _LARGE <= matrix.numel() <= _MOST_COUNTED
        shares = self._filled[size] if large and (size in self._filled or len(self._filled) < _MOST_SIZES) else None
        if shares is not None and len(shares) < _COUNTS and all(share <= _MOST_DENSE for share in shares):
            shares.append(int(torch.count_nonzero(matrix)) / matrix.numel())

    def _count_labels(self, scores: Any, labels: Any, _weight: Any, _reduction: int, ignored: int) -> None:
        if scores.dim() < _MATRIX or scores.numel() < _LARGE or not 0 < labels.numel() <= _MOST_COUNTED:
            return
        shares = self._labels[labels.numel(), scores.shape[1]]
        if len(shares) < _COUNTS:
            shares.append(int(self._torch.count_nonzero(labels != ignored)) / labels.numel())
