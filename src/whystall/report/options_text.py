"""A table of options against devices: memory and fit of each, and a step's least time."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from whystall.hardware import find
from whystall.model.prediction.results import Cell, OptionRow
from whystall.report.document import Document, grid
from whystall.report.format import duration, size
from whystall.report.names import clean

_NO = "-"


def options_document(found: Sequence[OptionRow], width: int) -> Document:
    """The table, and the meaning of its cells."""
    names = [one.device for one in found[0].cells]
    labels = ("one device by default", "holds", *(_short(name) for name in names))
    rows = [[row.options or row.text, _held(row), *map(_cell, row.cells)] for row in found]
    meaning = (
        "A time: it fits, and a step takes at least that (arithmetic and memory at the device's peaks, or what ranks "
        "send over its link if that is longer). fits: a peak or the link is not known. -: it does not fit. ?: the "
        "device's size is not known. Two amounts: with flash attention, and on devices that have none. None of it was "
        "measured on a device."
    )
    table = grid("Which options fit which devices", labels, rows)
    return Document("model --predict", "Which options fit which devices", (table, fill(meaning, width)))


def _short(name: str) -> str:
    row = find(name)
    return clean(name if row is None else row.name)


def _held(row: OptionRow) -> str:
    amounts = dict.fromkeys(size(one.peak_bytes) for one in sorted(row.cells, key=lambda one: one.peak_bytes))
    return " / ".join(amounts)


def _cell(cell: Cell) -> str:
    if cell.fits is None:
        return "?"
    if not cell.fits:
        return _NO
    return "fits" if cell.least_ns is None else duration(cell.least_ns)
