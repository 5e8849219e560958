"""The share of padding in the job's batches: a few of them are examined, on the host, as they come.

Padding is recognised by its values and not by names: tokens that end (or begin) in a row of one number, or frames of
zeros, which occur nowhere else, in rows of different length.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.capture.faults import suppress
from whystall.capture.readable import is_readable
from whystall.capture.stacks import shown_file, text_of
from whystall.capture.tally import Place, place_of
from whystall.capture.the_jobs import items_in
from whystall.run_folder.observations import MadeAt, PaddedBatches

_ALL_OF_THE_FIRST: Final = 16
_MOST_LOOKS: Final = 24
_MOST_TENSORS: Final = 12
_DEEPEST: Final = 3
_LEAST_PLACES: Final = 8
_MOST_VALUES: Final = 1 << 19
_ENOUGH: Final = 1024
_FEW_ROWS: Final = 2
_MOST_SIZES: Final = 64
# Each convolution over frames leaves every second of them.
_STRIDES: Final = (1, 2, 4, 8)
# An end-of-sequence token that also serves as padding occurs once inside a row as well.
_ELSEWHERE: Final = 0.02
# A row of flags or types has no padding at its ends.
_LEAST_TOKENS: Final = 3
# Padding is the same number in every batch; rows that end alike by chance, or since a model repeats itself, are not.
_LEAST_ALIKE: Final = 0.8
_TOKENS: Final = 2
_FRAMES: Final = 3

Lengths = NDArray[np.int64]

LOADER: Final = "loader"
"""The source of batches that a data loader hands out."""


class PaddingSeen:
    """Counts the padding of batches; ``asks`` is true while it needs more of them."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.asks = wanted
        self._source: str | None = None
        self._given = self._looks = 0
        self._next = 1
        self._batches = 0
        self._positions, self._needed, self._real = [0, 0], [0, 0], [0, 0]
        self._sizes: dict[tuple[int, int], None] = {}
        self._lengths: set[int] = set()
        self._fills: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Per tensor of a batch how many places which number pads."""
        self._made_at: Place | None = None

    def comes(self, source: str) -> bool:
        """Counts a batch of a source (a loader, a module's arguments), and returns whether it is to be examined."""
        if not self.asks or self._source not in (None, source):
            return False
        self._given += 1
        return self._given >= self._next

    def look(self, batch: object, source: str, maker: Place | None = None) -> None:
        """Examines a batch: the first source that holds sequences counts.

        ``maker`` is the function that puts a loader's batches together; for other sources the line that makes them.
        """
        self._next = self._given + 1 if self._given < _ALL_OF_THE_FIRST else 2 * self._given
        self._looks += 1
        self.asks = self._looks < _MOST_LOOKS
        by_size: dict[tuple[int, int], Lengths] = {}
        sizes: list[tuple[int, int]] = []
        for place, values in enumerate(_arrays(batch)):
            found = padded(values)
            if found is None:
                continue
            lengths, fill = found
            self._fills[place][fill] += values.shape[0] * values.shape[1] - int(lengths.sum())
            size = values.shape[:2]
            sizes += [(size[0], -(-size[1] // stride)) for stride in (_STRIDES if values.ndim == _FRAMES else (1,))]
            # Labels are padded where tokens are not (a prompt): the least of several tensors of one size counts.
            if size not in by_size or lengths.sum() > by_size[size].sum():
                by_size[size] = lengths
        if not by_size:
            return
        if self._source is None:
            self._source = source
            self._made_at = maker if source == LOADER else place_of("", sys._getframe(1))  # noqa: SLF001 - the documented way
        self._batches += 1
        for (rows, places), lengths in by_size.items():
            for power in range(2):
                self._positions[power] += rows * places ** (power + 1)
                self._needed[power] += rows * int(lengths.max()) ** (power + 1)
                self._real[power] += int((lengths ** (power + 1)).sum())
            self._lengths.update(lengths.tolist())
        room = _MOST_SIZES - len(self._sizes)
        self._sizes.update(dict.fromkeys(sizes[:room]))

    def told(self) -> PaddedBatches | None:
        """The padding that was seen; ``None`` without sequences of more than one length."""
        alike = (max(fills.values()) >= _LEAST_ALIKE * fills.total() for fills in self._fills.values())
        if len(self._lengths) < _TOKENS or not all(alike):
            return None
        return PaddedBatches(
            batches=self._batches,
            positions=(self._positions[0], self._positions[1]),
            needed=(self._needed[0], self._needed[1]),
            real=(self._real[0], self._real[1]),
            sizes=list(self._sizes),
            loaded=self._source == LOADER,
            made_at=_shown(self._made_at),
        )


def _shown(place: Place | None) -> MadeAt | None:
    if place is None:
        return None
    _, file, line, function = place
    return MadeAt(shown_file(file), line, function, text_of(file, line))


def lengths_of(values: NDArray[Any]) -> Lengths | None:
    """The lengths of a batch's rows without their padding; ``None`` for a batch without sequences.

    ``values`` are tokens (rows, places), or frames (rows, places, features).
    """
    found = padded(values)
    return found[0] if found is not None else None


def padded(values: NDArray[Any]) -> tuple[Lengths, int] | None:
    """The same, and the number that pads (0 of frames)."""
    if min(values.shape[:2]) < 1 or values.shape[1] < _LEAST_PLACES:
        return None
    if values.ndim == _FRAMES:
        lengths = _rows_without((values == 0).all(axis=2))
        return (lengths, 0) if lengths is not None else None
    if (np.diff(values[:_FEW_ROWS].astype(np.int64), axis=1) == 1).all():  # positions
        return None
    found = [_tokens_without(values, column) for column in (-1, 0)]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: int(one[0].sum())) if known else None


def _tokens_without(values: NDArray[Any], column: int) -> tuple[Lengths, int] | None:
    """The same where the padding is the most frequent number of the last column, or of the first."""
    numbers, counts = np.unique(values[:, column], return_counts=True)
    pad = values == numbers[counts.argmax()]
    lengths = _rows_without(pad if column else pad[:, ::-1])
    if lengths is None:
        return None
    some = values[: max(_ENOUGH // values.shape[1], _FEW_ROWS)]
    some = some[:, :_ENOUGH] if column else some[:, -_ENOUGH:]  # the end without padding
    fill = int(numbers[counts.argmax()])
    return (lengths, fill) if len(np.unique(some[some != fill])) >= _LEAST_TOKENS else None


def _rows_without(pad: NDArray[np.bool_]) -> Lengths | None:
    """The length of each row before its padding; ``None`` if the padding's value occurs inside rows as well."""
    rows, places = pad.shape
    tail = np.where(pad.all(axis=1), places, (~pad[:, ::-1]).argmax(axis=1))
    real = rows * places - int(tail.sum())
    if int(pad.sum()) - int(tail.sum()) > _ELSEWHERE * real:
        return None
    if tail.max() <= 1:  # the same number at the end of some rows, by chance
        tail[:] = 0
    lengths: Lengths = places - tail
    return lengths


def _arrays(batch: object) -> Iterable[NDArray[Any]]:
    """The tokens and frames in a batch: plain tensors of the host, at a size that is looked through at once."""
    torch: Any = sys.modules.get("torch")
    left = _MOST_TENSORS
    stack: list[tuple[Any, int]] = [(batch, 0)]
    while stack and left and torch is not None:
        thing, depth = stack.pop()
        if type(thing) is torch.Tensor:
            left -= 1
            if _is_sequence(torch, thing):
                with suppress(RuntimeError, TypeError):  # it stands for another, within a transformation
                    if is_readable(thing):
                        yield thing.clone().numpy()  # the storage of the job's own tensor could not be resized any more
        elif depth < _DEEPEST:
            stack += [(value, depth + 1) for value in (items_in(thing) or [])[:_MOST_TENSORS]]


def _is_sequence(torch: Any, tensor: Any) -> bool:
    """Whether a tensor holds tokens (whole numbers) or frames, on the host; runs nothing."""
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.requires_grad:
        return False
    if tensor.dim() not in (_TOKENS, _FRAMES) or not 0 < tensor.numel() <= _MOST_VALUES:
        return False
    whole = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    if tensor.dim() == _TOKENS:
        return whole and tensor.dtype not in (torch.bool, torch.uint8)
    return tensor.dtype in (torch.float32, torch.float64, torch.float16) and tensor.shape[2] > 1
