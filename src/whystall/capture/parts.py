"""Results that are made whole and read in part: a picture that is cropped after all else, rows that are picked.

An operator receives a view, which limits the places of a storage that it can read; or indices, by which it picks rows.
An operator that makes each number from the number in the same place, or each row from the same row, need not have made
the others.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from whystall.capture.masks import Rows

# With a larger share read little is saved.
_MOST_READ: Final = 0.5
_LEAST: Final = 1 << 12
# Operators that compute each place independently, beside torch's pointwise ones; random operators among them.
_BY_PLACE: Final = frozenset({
    "aten::_to_copy", "aten::clone", "aten::native_dropout", "aten::normal", "aten::rand", "aten::randint",
    "aten::randn", "aten::randperm", "aten::upsample_bicubic2d", "aten::upsample_bilinear2d",
    "aten::upsample_nearest2d",
})  # fmt: skip
_CONVOLUTION: Final = "aten::convolution"
_PRODUCTS: Final = frozenset({"aten::bmm", "aten::mm"})
_FLIP: Final = "aten::flip"
_FOURIER: Final = frozenset({"aten::_fft_c2c", "aten::_fft_r2c"})
# Where the argument stands each of whose rows becomes one row.
_BY_ROW: Final = {
    **dict.fromkeys(("aten::_log_softmax", "aten::_softmax", "aten::argmax", "aten::clone", "aten::gather"), 0),
    **dict.fromkeys(("aten::amax", "aten::amin", "aten::linalg_vector_norm", "aten::logsumexp", "aten::mean"), 0),
    **dict.fromkeys(("aten::_to_copy", "aten::mm", "aten::native_dropout", "aten::native_layer_norm", "aten::sum"), 0),
    **dict.fromkeys(("aten::addmm", "aten::embedding"), 1),
}
# Those that state the dimensions they work over, and the argument with them.
_OVER: Final = {
    **dict.fromkeys(("aten::_log_softmax", "aten::_softmax", "aten::amax", "aten::amin", "aten::argmax"), 1),
    **dict.fromkeys(("aten::gather", "aten::logsumexp", "aten::mean", "aten::sum"), 1),
    "aten::linalg_vector_norm": 2,
}
# Operators that make a row from several others, or from all.
_MIXES: Final = re.compile(r"mm$|attention|conv|scatter|index_add|segment|lstm|gru|rnn|sparse|fft|cumsum|einsum|baddb")


class Part(NamedTuple):
    """Places of a storage."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def held(self) -> int:
        """The number of distinct places (a stride of 0 repeats one)."""
        return math.prod(n for n, step in zip(self.size, self.stride, strict=True) if step)


class Through(NamedTuple):
    """Maps places of a call's result to places of its input, as far as they are no more than these."""

    address: int
    given: Part
    """All places of the input."""
    made: Part
    """All places of the result."""
    by: str
    """``columns`` of a product with a matrix that is not made in the step (a filter bank on the left) come of columns,
    ``rows`` that are transformed (Fourier) of rows, ``mirrored`` places of those opposite."""
    beside: int | None = None
    """The other matrix of a product."""
    over: tuple[int, ...] = ()
    """The dimensions that are turned around."""

    def places(self, part: Part) -> Part | None:
        """The source places of the places ``part`` of the result; ``None`` if they are unknown, or all."""
        if self.by == "rows":
            return self._rows(part)
        made, given = self.made, self.given
        if part.stride != made.stride or len(part.size) != len(made.size):
            return None
        if self.by == "columns":
            if part.size[:-1] != made.size[:-1] or part.offset >= made.size[-1]:
                return None
            offset = given.offset + part.offset * given.stride[-1]
            return Part(offset, (*given.size[:-1], part.size[-1]), given.stride)
        at = [part.offset // step % n for n, step in zip(made.size, made.stride, strict=True)]
        for axis in self.over:
            at[axis] = made.size[axis] - part.size[axis] - at[axis]
        return Part(sum(n * step for n, step in zip(at, made.stride, strict=True)), part.size, part.stride)

    def _rows(self, part: Part) -> Part | None:
        """The elements made from one row lie side by side."""
        wide, as_wide = self.made.size[-1], self.given.size[-1]
        inner = [n for n, step in zip(part.size, part.stride, strict=True) if step == 1]
        if inner != [wide] or part.offset % wide:
            return None
        sizes = tuple(as_wide if step == 1 else n for n, step in zip(part.size, part.stride, strict=True))
        steps = tuple(1 if step == 1 else step // wide * as_wide for step in part.stride)
        return Part(self.given.offset + part.offset // wide * as_wide, sizes, steps)


class Reading(NamedTuple):
    """How an operator reads storages, by their addresses; and its result, if it computes each place independently."""

    parts: Mapping[int, Part]
    """Storages that it receives a partial view of."""
    alike: frozenset[int]
    """Storages with the layout of its result."""
    by_row: frozenset[int]
    """Storages each of whose rows becomes one row of its result,"""
    rows: tuple[int, ...]
    """possible numbers of rows: of the first dimension, of the first two and so on."""
    picks: Mapping[int, Rows]
    through: Through | None
    makes: int
    """Number of places; 0 where they are not made independently, or few."""
    strided: bool
    """Whether nothing but a regular part (each second place) is one that it can do without making the rest."""
    mixes: bool


class Call(Protocol):
    """Further facts about a call."""

    reads: list[int]
    writes: list[int]
    alive: bool
    back: bool
    reading: Reading


class Readings:
    """Determines how calls read their inputs."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # The method before reads by Python are followed: queries here count as no reads.
        self._storage_of: Callable[[Any], Any] = torch.Tensor.untyped_storage

    def of(self, function: Any, name: str, given: Sequence[Any], output: object, *, back: bool) -> Reading:
        """How one call reads its inputs."""
        torch = self._torch
        first = output[0] if isinstance(output, tuple) and output else output
        made: Any = first if isinstance(first, torch.Tensor) and self._is_plain(first) else None
        parts: dict[int, Part] = {}
        alike, whole, otherwise = set[int](), set[int](), set[int]()
        for tensor in self._tensors(given):
            address = self._address(tensor)
            part = self.part_of(tensor)
            if part is None or parts.get(address, part) != part:
                whole.add(address)
                same = made is not None and tensor.shape == made.shape and tensor.stride() == made.stride()
                (alike if same else otherwise).add(address)
            else:
                parts[address] = part
        parts = {address: part for address, part in parts.items() if address not in whole}
        if back:
            return Reading(parts, frozenset(), frozenset(), (), {}, None, 0, strided=False, mixes=False)
        through = self._through(name, given, made)
        by_place = name == _CONVOLUTION or name in _BY_PLACE or name.endswith("_like")
        by_place |= torch.Tag.pointwise in function.tags
        by_place = through is not None or (by_place and made is not None and not made.is_complex())
        own = by_place and made is not None and self.part_of(made) is None
        makes = made.numel() if own else 0
        by_row, rows = self._rows(function, name, given, made)
        return Reading(
            parts,
            frozenset(alike - otherwise),  # an addend of itself transposed is read in two ways
            by_row,
            rows,
            self._picks(name, given, made),
            through,
            makes if makes >= _LEAST else 0,
            strided=name == _CONVOLUTION,
            mixes=bool(_MIXES.search(name)),
        )

    def part_of(self, tensor: Any) -> Part | None:
        """The places that a view holds; nothing where these are all of its storage."""
        part = _all_of(tensor)
        return part if part.held * tensor.element_size() < self._storage_of(tensor).nbytes() else None

    def _through(self, name: str, given: Sequence[Any], made: Any) -> Through | None:
        """How places come of others, in products, Fourier transforms of rows and where dimensions are turned around."""
        if made is None or name not in _PRODUCTS | _FOURIER | {_FLIP} or not made.is_contiguous() or made.dim() < 2:
            return None
        of, *more = given
        if name in _PRODUCTS:  # a sparse matrix has no storage
            both = self._tensors((of, more[0])) if more else []
            return self._columns(both[0], both[1], made) if len(both) > 1 else None
        over = tuple(axis % made.dim() for axis in more[0])
        if name in _FOURIER and over == (made.dim() - 1,):
            return Through(self._address(of), _all_of(of), _all_of(made), "rows")
        if name == _FLIP and of.is_contiguous() and self.part_of(of) is None:
            return Through(self._address(of), _all_of(of), _all_of(made), "mirrored", over=over)
        return None

    def _columns(self, left: Any, right: Any, made: Any) -> Through:
        return Through(self._address(right), _all_of(right), _all_of(made), "columns", self._address(left))

    def _address(self, tensor: Any) -> int:
        return int(self._storage_of(tensor)._cdata)  # noqa: SLF001 - as torch.multiprocessing knows storages

    def _is_plain(self, tensor: Any) -> bool:
        return tensor.layout is self._torch.strided and not tensor.is_nested

    def _tensors(self, given: Sequence[Any]) -> list[Any]:
        listed = [one for each in given for one in (each if isinstance(each, list | tuple) else (each,))]
        return [one for one in listed if isinstance(one, self._torch.Tensor) and self._is_plain(one)]

    def _rows(
        self, function: Any, name: str, given: Sequence[Any], made: Any
    ) -> tuple[frozenset[int], tuple[int, ...]]:
        """The storages each of whose rows becomes one, and the possible numbers of these rows."""
        if made is None or not made.is_contiguous() or self.part_of(made) is not None:
            return frozenset(), ()
        if self._torch.Tag.pointwise in function.tags:
            of = [one for one in self._tensors(given) if one.shape == made.shape]
            leading = made.dim()
        elif name in _BY_ROW:
            of = self._tensors(given[_BY_ROW[name] : _BY_ROW[name] + 1])
            leading = min((one.dim() for one in of), default=0) - (name != "aten::embedding")
            if name in _OVER:
                over = given[_OVER[name]] if len(given) > _OVER[name] else None
                over = [over] if isinstance(over, int) else over or [0]
                leading = min(axis % max(of[0].dim(), 1) for axis in over) if of else 0
        else:
            return frozenset(), ()
        counts = tuple(math.prod(made.shape[:upto]) for upto in range(1, leading + 1))
        # A row is a row of the storage where numbers lie in their order, and the whole storage is passed.
        turned = {self._address(one) for one in self._tensors(given) if not one.is_contiguous()}
        return frozenset(self._address(one) for one in of if self.part_of(one) is None) - turned, counts

    def _picks(self, name: str, given: Sequence[Any], made: Any) -> dict[int, Rows]:
        """The storages whose rows are picked by indices, and the share of them that is."""
        if name == "aten::index" and len(given) > 1:
            of, numbers = given[0], given[1]
            leading = next((n for n, one in enumerate(numbers) if one is None), len(numbers))
            if any(one is not None for one in numbers[leading:]):
                return {}
            masks = {self._torch.bool, self._torch.uint8}
            leading += sum(one.dim() - 1 for one in numbers[:leading] if one.dtype in masks)
        elif name == "aten::index_select" and len(given) > 2 and given[1] == 0:
            of, leading = given[0], 1
        else:
            return {}
        if made is None or not self._is_plain(of) or not of.numel() or not of.is_contiguous():
            return {}
        if self.part_of(of) is not None:
            return {}
        return {self._address(of): Rows(math.prod(of.shape[:leading]), min(made.numel() / of.numel(), 1.0))}


def _all_of(tensor: Any) -> Part:
    return Part(tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def read_in_part(
    calls: Sequence[Call], count: int, kept: set[int], outside: Mapping[int, frozenset[Part]]
) -> dict[int, float]:
    """The calls among the first ``count`` of whose places or rows the smaller part is read, and that part's share.

    ``kept`` are the storages that are still referenced, ``outside`` those of which Python has read a part.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    parts: dict[int, frozenset[Part]] = {}
    picked: dict[int, Rows] = {}
    shares: dict[int, float] = {}
    written = {address for call in calls for address in call.writes}
    for number in range(len(calls) - 1, -1, -1):
        call = calls[number]
        if number < count and not call.alive and len(call.writes) == 1 and kept.isdisjoint(call.writes):
            address = call.writes[0]
            reading = [calls[reader].reading for reader in readers[address]]
            seen = [
                one.parts.get(address) or _made_of(one, address, parts.get(reader, frozenset()))
                for reader, one in zip(readers[address], reading, strict=True)
            ]
            beside = call.reading.through.beside if call.reading.through is not None else None
            known = beside is None or beside not in written
            read = _read(seen, outside.get(address, frozenset())) if known else frozenset()
            share = _share(read, call.reading)
            if share is not None:
                parts[number] = read
            rows = _rows_picked(call.reading, [_rows(calls, reader, address, picked) for reader in readers[address]])
            if rows is not None and address not in outside:
                picked[number] = rows
            elif share is not None:
                shares[number] = share
        for address in () if call.back else call.reads:
            readers[address].append(number)
    rows_first = _of_what_is_given(calls, picked)
    return shares | {number: picked[number].read for number in rows_first}


def _made_of(reading: Reading, address: int, read: frozenset[Part]) -> frozenset[Part]:
    """The places of a storage behind the read places of a call's result; none where they are unknown."""
    if address in reading.alike:
        return read
    through = reading.through
    if through is None or through.address != address:
        return frozenset()
    found = [through.places(part) for part in read]
    return frozenset(one for one in found if one is not None) if None not in found else frozenset()


def _read(seen: Sequence[Part | frozenset[Part]], outside: frozenset[Part]) -> frozenset[Part]:
    """All places that readers receive together; none where one may read all."""
    listed = [one if isinstance(one, frozenset) else frozenset({one}) for one in seen]
    return outside.union(*listed) if all(listed) else frozenset()


def _share(read: frozenset[Part], made: Reading) -> float | None:
    """The share of a call's result that is read; ``None`` where that is most of it, or it could not make less."""
    if not made.makes or not read:
        return None
    share = sum(one.held for one in read) / made.makes
    if made.through is not None and any(made.through.places(one) is None for one in read):
        return None
    return share if share <= _MOST_READ and (not made.strided or all(map(_is_regular, read))) else None


def _is_regular(part: Part) -> bool:
    """Whether every second place of a dimension is taken, or every third, and so on."""
    steps = sorted(step for n, step in zip(part.size, part.stride, strict=True) if n > 1)
    return bool(steps) and steps[0] > 1


def _rows(calls: Sequence[Call], reader: int, address: int, picked: Mapping[int, Rows]) -> Rows | None:
    reading = calls[reader].reading
    return reading.picks.get(address) or (picked.get(reader) if address in reading.by_row else None)


def _rows_picked(made: Reading, read: Sequence[Rows | None]) -> Rows | None:
    """The largest union of rows of a call's result that its readers pick; ``None`` where one may read others."""
    rows = [one for one in read if one is not None]
    if not rows or len(rows) < len(read) or len({one.number for one in rows}) > 1:
        return None
    together = Rows(rows[0].number, sum(one.read for one in rows))
    return together if together.read <= _MOST_READ and together.number in made.rows else None


def _of_what_is_given(calls: Sequence[Call], picked: Mapping[int, Rows]) -> list[int]:
    """Calls whose picked rows could be picked from the step's inputs: no call before them mixes rows.

    Results of attention or of a graph's neighbours depend on rows that are not picked in the end.
    """
    mixed: set[int] = set()
    found = []
    for number, call in enumerate(calls):
        if not mixed.isdisjoint(call.reads) or (call.reading.mixes and number not in picked and not call.back):
            mixed.update(call.writes)
        elif number in picked:
            found.append(number)
    return found
