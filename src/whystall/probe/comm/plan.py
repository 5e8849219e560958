"""The measurements of a sweep, for its processes: kinds, sizes, duration, and time limit."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from whystall.errors import UsageError
from whystall.probe.comm.results import COLLECTIVES, Backend, Collective
from whystall.vocabulary.collectives import convention

CPU_SIZES: Final = (1 << 10, 16 << 20)
GPU_SIZES: Final = (8 << 10, 1 << 30)
_STEP: Final = 4
_LARGEST: Final = 1 << 40
_MOST_RANKS: Final = 64  # on one machine
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FEWEST: Final = 2
_SPLITS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "AND": operator.and_, "OR": operator.or_, "MOD": operator.mod, "DIV": operator.floordiv,
}  # fmt: skip
ELEMENT_BYTES: Final = 4  # single precision throughout


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep: ``sizes`` in bytes (S by the table of conventions), ``seconds`` for each kind and size."""

    backend: Backend
    ranks: int
    sizes: list[int]
    collectives: list[Collective]
    seconds: float
    timeout_s: float
    split: str = ""
    """How the ranks part into groups, in nccl-tests' words (`groups_of`); empty: they are one group."""

    def __post_init__(self) -> None:
        """Raises ``UsageError`` for an impossible measurement."""
        if not 2 <= self.ranks <= 1 << 20:
            raise UsageError(f"a collective is between two ranks at least, and here is {self.ranks}")
        unknown = [name for name in self.collectives if name not in COLLECTIVES]
        if unknown:
            raise UsageError(f"{unknown[0]!r} is no collective that can be probed; {', '.join(COLLECTIVES)} are")
        groups_of(self.ranks, self.split)


def groups_of(ranks: int, split: str) -> list[list[int]]:
    """The groups that ranks part into: those whose number is the same under an operation, as nccl-tests splits.

    ``split`` is AND, OR, MOD or DIV and a number (``DIV 4``: neighbours in fours, ``MOD 4``: every fourth). Raises
    ``UsageError`` for other words, and where groups are not alike or of one rank: then there is no one bandwidth.

    >>> groups_of(4, "DIV 2"), groups_of(4, "MOD 2"), groups_of(4, "AND 0x1"), groups_of(2, "")
    ([[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 2], [1, 3]], [[0, 1]])
    """
    if not split:
        return [list(range(ranks))]
    found = re.fullmatch(r"(AND|OR|MOD|DIV)\s*(0x[0-9a-f]{1,8}|[0-9]{1,9})", split.strip(), re.IGNORECASE)
    value = int(found[2], 0 if found[2][:2].lower() == "0x" else 10) if found else 0
    word = found[1].upper() if found else ""
    if not word or (value == 0 and word in ("MOD", "DIV")):
        raise UsageError(f"--split wants AND, OR, MOD or DIV and a number, such as 'DIV 2', not {split[:40]!r}")
    groups: dict[int, list[int]] = {}
    for rank in range(ranks):
        groups.setdefault(_SPLITS[word](rank, value), []).append(rank)
    sizes = sorted(map(len, groups.values()))
    if sizes[0] < _FEWEST or sizes[0] != sizes[-1]:
        raise UsageError(
            f"--split {split!r} makes groups of {', '.join(map(str, sorted(set(sizes))))} of {ranks} ranks; groups "
            f"need {_FEWEST} ranks at least, and equal sizes"
        )
    return list(groups.values())


def swept(smallest: int, largest: int) -> list[int]:
    """Sizes in bytes from the smallest to the largest, each four times the one before.

    >>> swept(1024, 20000)
    [1024, 4096, 16384]
    """
    if not ELEMENT_BYTES <= smallest <= largest <= _LARGEST:
        raise UsageError(f"sizes from {smallest} to {largest} bytes cannot be swept; they lie between 4 B and 1 TiB")
    sizes = [smallest]
    while sizes[-1] * _STEP <= largest:
        sizes.append(sizes[-1] * _STEP)
    return sizes


def size_of(text: str) -> int:
    """Bytes, with K, M or G for powers of 1024 as nccl-tests has them. Raises ``UsageError``.

    >>> size_of("64K"), size_of("8")
    (65536, 8)
    """
    found = re.fullmatch(r"(\d{1,15})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise UsageError(f"{text!r} is no size; write bytes, or 64K, 16M, 1G")
    return int(found[1]) * _UNITS[found[2].upper()]


def checked_ranks(ranks: int, backend: Backend, devices: int) -> int:
    """How many processes to start on this machine. Raises ``UsageError``."""
    if not 2 <= ranks <= _MOST_RANKS:
        raise UsageError(f"--ranks wants a number between 2 and {_MOST_RANKS}, not {ranks}")
    if backend == "nccl" and ranks > devices:
        raise UsageError(f"NCCL wants a GPU for each of {ranks} ranks, and there are {devices}; try --backend gloo")
    return ranks


def elements(kind: Collective, size: int, ranks: int) -> int:
    """Elements of a rank's larger buffer for S near ``size``: whole, and the same for every rank.

    >>> elements("all_gather", 1024, 3)
    255
    """
    each = ranks if convention(kind).total == "count x ranks" else 1
    return max(size // ELEMENT_BYTES // each, 1) * each


def uneven(count: int, ranks: int) -> list[int]:
    """A rank's elements for each of a group, ``count`` in all, where the last gets most: as 1 to 2 to 3 and so on.

    >>> uneven(12, 3), uneven(1, 2)
    ([2, 4, 6], [0, 1])
    """
    shares = [2 * count * (place + 1) // (ranks * (ranks + 1)) for place in range(ranks - 1)]
    return [*shares, count - sum(shares)]
