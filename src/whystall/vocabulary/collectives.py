"""Bandwidths of collectives: one table of size conventions and factors for traces, probes and logs.

There are three bandwidths. *Algorithm* bandwidth is a size over a time, where the size is by the convention of the
kind. *Bus* bandwidth multiplies it so that a ring would show the speed of its links for any number of ranks. *Wire*
bandwidth is the traffic of a rank's link: with reductions in the switch (NVLS, SHARP) less than bus bandwidth, which
may then exceed the link's peak. Conventions are those of nccl-tests; its tables count n ranks of the group.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

__all__ = ["Bandwidth", "Convention", "LinkShare", "bandwidth", "convention", "conventions", "kind_named", "link_share"]

Factor = Literal["1", "(n-1)/n", "2(n-1)/n", "(n+1)/n"]
Total = Literal["count", "count x ranks", "count x others", "largest"]

_IN_SWITCH: Final = re.compile(r"nvls|sharp|collnet", re.IGNORECASE)
_COUNTING_ERROR: Final = "its size, time or group, or the link's peak, is not what it is taken for"


class Convention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the bandwidth of one kind of collective is computed, and by whose definition."""

    total: Total
    side: Literal["input", "output"]
    names: tuple[str, ...]
    source: str
    factor: Factor | None = None
    nvls: Factor | None = None

    def total_bytes(self, count_bytes: int, ranks: int) -> int:
        """The size S of a collective, in bytes, from the bytes that one rank gives or gets.

        >>> convention("all_gather").total_bytes(1024, 8), convention("all_reduce").total_bytes(1024, 8)
        (8192, 1024)
        """
        times = {"count x ranks": ranks, "count x others": max(ranks - 1, 1)}.get(self.total, 1)
        return count_bytes * times

    def bus_factor(self, ranks: int) -> float | None:
        """Bus bandwidth over algorithm bandwidth in a group of ``ranks``; ``None`` where nothing defines it.

        >>> convention("all_reduce").bus_factor(8), convention("broadcast").bus_factor(8)
        (1.75, 1.0)
        """
        return None if self.factor is None else _factor(self.factor, ranks)

    def wire_factor(self, ranks: int, algorithm: str | None = None) -> float | None:
        """Bytes on a rank's link over S; ``algorithm`` is as NCCL names it (Ring, Tree, NVLS, NVLSTree, CollNet…).

        >>> convention("all_reduce").wire_factor(8, "NVLS"), convention("all_reduce").wire_factor(8, "Ring")
        (1.125, 1.75)
        """
        if self.nvls is not None and algorithm is not None and _IN_SWITCH.search(algorithm):
            return _factor(self.nvls, ranks)
        return self.bus_factor(ranks)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second; ``None`` where no source defines the kind's."""

    algorithm_bytes_per_s: float
    bus_bytes_per_s: float | None
    wire_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class LinkShare:
    """The share of a link's peak that a collective reaches, and a note on it."""

    share: float | None
    note: str | None


@cache
def conventions() -> dict[str, Convention]:
    """The table, by kind."""
    text = (files("whystall.vocabulary") / "collectives.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Convention])


def convention(kind: str) -> Convention:
    """The conventions of a kind. Raises ``KeyError`` for one that the table does not know."""
    return conventions()[kind]


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((kind, re.compile("|".join(one.names), re.IGNORECASE)) for kind, one in conventions().items())


def kind_named(name: str) -> str | None:
    """The kind that a library, recorder or log means by ``name``; ``None`` where the table knows none.

    >>> [kind_named(name) for name in ("_allgather_base", "AllReduce", "nccl:recv 3<-1", "allreduce_coalesced", "x")]
    ['all_gather', 'all_reduce', 'send_recv', 'all_reduce', None]
    """
    return _kind_named(name[:200])


@cache
def _kind_named(name: str) -> str | None:
    return next((kind for kind, pattern in _patterns() if pattern.search(name)), None)


def bandwidth(kind: str, total_bytes: int, duration_ns: float, ranks: int, algorithm: str | None = None) -> Bandwidth:
    """The bandwidths of one collective of S = ``total_bytes`` over ``ranks`` ranks of its group in ``duration_ns``.

    Raises ``KeyError`` for a kind that the table does not know, ``ValueError`` for no time or no rank.

    >>> found = bandwidth("all_reduce", 1 << 30, 10_000_000, 8)
    >>> f"{found.algorithm_bytes_per_s / 1e9:.3f} {found.bus_bytes_per_s / 1e9:.3f}"
    '107.374 187.905'
    """
    if duration_ns <= 0 or ranks < 1 or total_bytes < 0:
        raise ValueError(f"no bandwidth: {total_bytes} bytes over {ranks} ranks in {duration_ns} ns")
    known = convention(kind)
    algorithm_bytes_per_s = total_bytes / (duration_ns / 1e9)
    bus, wire = known.bus_factor(ranks), known.wire_factor(ranks, algorithm)
    return Bandwidth(
        algorithm_bytes_per_s,
        None if bus is None else algorithm_bytes_per_s * bus,
        None if wire is None else algorithm_bytes_per_s * wire,
    )


def link_share(
    kind: str, algorithm_bytes_per_s: float, ranks: int, link_bytes_per_s: float, algorithm: str | None = None
) -> LinkShare:
    """A link's traffic over its peak in one direction, with a note wherever bus bandwidth exceeds the peak.

    An unknown algorithm counts as a ring, unless only a reduction in the switch fits through the link.

    >>> link_share("all_reduce", 275e9, 8, 450e9).share
    0.6875
    """
    known = convention(kind)
    bus, wire = known.bus_factor(ranks), known.wire_factor(ranks, algorithm)
    if bus is None or wire is None or link_bytes_per_s <= 0:
        return LinkShare(None, f"no source says what {kind} puts on a link" if bus is None else "the link is not known")
    if algorithm is None and bus * algorithm_bytes_per_s > link_bytes_per_s and known.nvls is not None:
        wire = _factor(known.nvls, ranks)
    share = wire * algorithm_bytes_per_s / link_bytes_per_s
    if share > 1:
        return LinkShare(share, f"more than the link can carry: {_COUNTING_ERROR}")
    if bus * algorithm_bytes_per_s <= link_bytes_per_s:
        return LinkShare(share, None)
    taken = "" if algorithm is not None else ", which nothing but this size and time shows"
    return LinkShare(
        share,
        f"bus bandwidth {bus * algorithm_bytes_per_s / 1e9:.3g} GB/s is that of an equivalent ring; the switch reduces "
        f"(NVLS){taken}: {wire * algorithm_bytes_per_s / 1e9:.3g} GB/s cross the link",
    )


def _factor(factor: Factor, ranks: int) -> float:
    above = {"1": ranks, "(n-1)/n": ranks - 1, "2(n-1)/n": 2 * (ranks - 1), "(n+1)/n": ranks + 1}[factor]
    return above / ranks
