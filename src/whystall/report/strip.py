"""All ranks in one picture: a row per part of the ledger, a column per device, shaded where it is unlike most.

A rank that is like the others is blank, so that of thousands those that differ are seen at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from whystall.analysis.results import Device
from whystall.report import format as fmt
from whystall.report.overview import bar_of
from whystall.report.vocabulary import Part

_FEWEST: Final = 4
# Shares that differ by less, in percent of a step, are called the same; from the last on the shade is full.
_SHADES: Final = (2.0, 5.0, 10.0, 20.0)
_MOST_ROWS: Final = 10


@dataclass(frozen=True, slots=True)
class Cell:
    """One or some neighbouring devices whose share is unlike the median of all; ``shade`` counts from 1."""

    x: float
    width: float
    shade: int
    more: bool
    title: str


@dataclass(frozen=True, slots=True)
class StripRow:
    """A part of the ledger over all devices."""

    part: Part
    median: str
    cells: tuple[Cell, ...]
    words: str


@dataclass(frozen=True, slots=True)
class StripView:
    """The picture: its rows, the hosts' borders in percent of its width, and the meaning of a column."""

    rows: tuple[StripRow, ...]
    borders: tuple[float, ...]
    caption: str
    first: str
    last: str


def strip(devices: Sequence[Device], hosts: Sequence[int], columns: int, of: str = "hosts") -> StripView | None:
    """The picture of devices in order; ``hosts`` are the numbers of devices of the hosts (empty: not known).

    ``of`` may name pipeline stages in place of hosts. ``None`` for few devices, whose bars show the same. More devices
    than ``columns`` share them: a column shows the one that is farthest from the median.
    """
    if len(devices) < _FEWEST:
        return None
    ledgers = [{one.part: one.width for one in bar_of(device).segments} for device in devices]
    found = list(dict.fromkeys(part for ledger in ledgers for part in ledger))
    parts = sorted(found, key=lambda part: -max(ledger.get(part, 0.0) for ledger in ledgers))[:_MOST_ROWS]
    names = [f"rank {device.rank}" for device in devices]
    size = -(-len(devices) // max(columns, 1))
    rows = [_row(part, [ledger.get(part, 0.0) for ledger in ledgers], names, size) for part in parts]
    shown = "a device" if size == 1 else f"{size} devices: the one that differs most is shown"
    return StripView(
        rows=tuple(row for row in rows if row.cells),
        borders=tuple(_borders(hosts, len(devices))),
        caption=f"A column is {shown}. Beside each part: the median of all. Shaded: a share of the step that is at "
        f"least {_SHADES[0]:.0f} points above or below it, fully from {_SHADES[-1]:.0f} points on."
        + (f" Lines part the {of}." if len(hosts) > 1 else ""),
        first=names[0],
        last=names[-1],
    )


def _row(part: Part, shares: Sequence[float], names: Sequence[str], size: int) -> StripRow:
    median = statistics.median(shares)
    cells = tuple(_cells(shares, median, names, size))
    unlike = sum(abs(share - median) >= _SHADES[0] for share in shares)
    words = f"{part.label}: median {fmt.share(median / 100)}, {unlike:,} of {len(shares):,} unlike it"
    return StripRow(part, fmt.share(median / 100), cells, words)


def _cells(shares: Sequence[float], median: float, names: Sequence[str], size: int) -> Iterator[Cell]:
    count = len(shares)
    for first in range(0, count, size):
        own = range(first, min(first + size, count))
        farthest = max(own, key=lambda place: (abs(shares[place] - median), -place))
        apart = shares[farthest] - median
        shade = sum(abs(apart) >= least for least in _SHADES)
        if shade:
            title = f"{names[farthest]}: {fmt.share(shares[farthest] / 100)}"
            yield Cell(first / count * 100, len(own) / count * 100, shade, apart > 0, title)


def _borders(hosts: Sequence[int], count: int) -> Iterator[float]:
    at = 0
    for size in hosts[:-1]:
        at += size
        yield at / count * 100
