"""One category's scanned columns, with arguments looked up by name and type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import Scanner

if TYPE_CHECKING:
    from whystall._native._ext import TableColumns

INTEGER: Final = 0
FLOAT: Final = 1
TEXT: Final = 2
RAW: Final = 3

MISSING_TIME: Final = int(np.iinfo(np.int64).min)

Sparse = tuple[NDArray[Any], NDArray[Any]]
"""Rows and the values at them."""

Integers = tuple[NDArray[Any], NDArray[np.bool_] | None]
"""A value per event, and which are known (``None``: all)."""


class RawTable:
    """The events of one category as they were scanned; arguments leave as they are taken."""

    def __init__(self, columns: TableColumns, scanner: Scanner) -> None:
        self.category: str = columns["category"]
        self.metadata: bool = columns["metadata"]
        self.rows: int = columns["rows"]
        self.phase = columns["phase"].view(np.uint8)
        self.name = columns["name"].view(np.uint32)
        self.thread = columns["thread"].astype(np.int32, copy=False)
        self.start = columns["start"]
        self.duration = columns["duration"]
        self._scanner = scanner
        self._arguments: dict[tuple[str, int], tuple[NDArray[np.int32] | None, NDArray[Any]]] = {
            (key, kind): (rows, values) for key, kind, rows, values in columns["arguments"]
        }

    def take(self, key: str, kind: int) -> Sparse | None:
        """Rows and values of an argument of one type, or ``None`` where no event has it."""
        found = self._arguments.pop((key, kind), None)
        if found is None:
            return None
        rows, values = found
        return _rows(rows, values), values

    def integers(self, *keys: str) -> Integers:
        """The first of ``keys`` that each event has, as integers; whole floats and numeric text count."""
        parts = [part for key in keys for part in self._integer_parts(key)]
        if len(parts) == 1 and len(parts[0][1]) == self.rows:
            return parts[0][1], None
        dtype = np.result_type(np.int8, *(values.dtype for _, values in parts))
        out: NDArray[Any] = np.zeros(self.rows, dtype)
        known = np.zeros(self.rows, np.bool_)
        for rows, values in parts:
            fresh = ~known[rows]
            out[rows[fresh]] = values[fresh]
            known[rows[fresh]] = True
        return out, None if known.all() else known

    def _integer_parts(self, key: str) -> list[Sparse]:
        parts: list[Sparse] = []
        if (integers := self.take(key, INTEGER)) is not None:
            parts.append(integers)
        if (floats := self.take(key, FLOAT)) is not None:
            rows, values = floats
            whole = np.isfinite(values) & (np.abs(values) < 2.0**62) & (values == np.floor(values))
            parts.append((rows[whole], values[whole].astype(np.int64)))
        if (texts := self.take(key, TEXT)) is not None:
            rows, ids = texts
            used, codes = used_codes(ids, self._scanner.text_count())
            numbers = [_integer(text) for text in self._scanner.texts(used)]
            valid = np.array([number is not None for number in numbers], np.bool_)[codes]
            lookup = np.array([number or 0 for number in numbers], np.int64)
            parts.append((rows[valid], lookup[codes][valid]))
        return parts

    def floats(self, key: str) -> Integers:
        """An argument as floating point, integers included."""
        out = np.zeros(self.rows, np.float64)
        known = np.zeros(self.rows, np.bool_)
        for kind in (INTEGER, FLOAT):
            if (part := self.take(key, kind)) is not None:
                out[part[0]] = part[1]
                known[part[0]] = True
        return out, None if known.all() else known

    def text_ids(self, *keys: str) -> NDArray[np.int32]:
        """The first of ``keys`` that each event has, as an id of text (-1: none); lists count as written."""
        out = np.full(self.rows, -1, np.int32)
        for key in keys:
            for kind in (TEXT, RAW):
                if (part := self.take(key, kind)) is not None:
                    rows, ids = part
                    fresh = out[rows] < 0
                    out[rows[fresh]] = ids[fresh]
        return out

    def numbers(self) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
        """The arguments that are numbers, which stay: name, rows and values."""
        for (key, kind), (rows, values) in sorted(self._arguments.items(), key=lambda entry: entry[0]):
            if kind in {INTEGER, FLOAT}:
                yield key, _rows(rows, values), values

    def having(self, key: str) -> NDArray[np.bool_]:
        """Which events have an argument of this name."""
        out = np.zeros(self.rows, np.bool_)
        for (name, _), (rows, values) in self._arguments.items():
            if name == key:
                out[_rows(rows, values)] = True
        return out

    def without(self, gone: NDArray[np.bool_]) -> RawTable:
        """The table without some of its events."""
        kept = ~gone
        place = (np.cumsum(kept) - 1).astype(np.int32)
        arguments: list[tuple[str, int, NDArray[np.int32] | None, NDArray[Any]]] = []
        for (key, kind), (given, values) in self._arguments.items():
            rows = _rows(given, values)
            stays = kept[rows]
            arguments.append((key, kind, place[rows[stays]], values[stays]))
        columns: TableColumns = {
            "category": self.category,
            "metadata": self.metadata,
            "rows": int(np.count_nonzero(kept)),
            "phase": self.phase[kept].view(np.int8),
            "name": self.name[kept].view(np.int32),
            "thread": self.thread[kept],
            "start": self.start[kept],
            "duration": self.duration[kept],
            "arguments": [entry for entry in arguments if len(entry[3])],
        }
        return RawTable(columns, self._scanner)

    def rest(self) -> list[tuple[str, int, NDArray[Any], NDArray[Any]]]:
        """The arguments left after `take`: name, type, rows, and values (ids for text)."""
        return [
            (key, kind, *part) for key, kind in sorted(self._arguments) if (part := self.take(key, kind)) is not None
        ]


def _rows(rows: NDArray[np.int32] | None, values: NDArray[Any]) -> NDArray[np.int32]:
    """The rows that have values; ``None`` stands for the first ones."""
    return np.arange(len(values), dtype=np.int32) if rows is None else rows


def _integer(text: str) -> int | None:
    try:
        number = int(text, 0)
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 else None


def nullable(values: NDArray[Any], known: NDArray[np.bool_]) -> pl.Series:
    """A series of ``values`` that is null where not ``known``."""
    series = pl.Series(values)
    if known.all():
        return series
    return pl.select(pl.when(pl.Series(known)).then(series)).to_series()


def used_codes(ids: NDArray[Any], count: int) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """The ids that occur, ascending, and each id's place among them (linear, no sorting)."""
    marked = np.zeros(count, np.bool_)
    marked[ids] = True
    used = np.flatnonzero(marked).astype(np.int32)
    place = np.zeros(count, np.uint32)
    place[used] = np.arange(len(used), dtype=np.uint32)
    return used, place[ids]


def coded(ids: NDArray[Any], texts_of: Callable[[NDArray[np.int32]], list[str]], count: int) -> pl.Series:
    """A series of texts from their ids (-1: null), holding only the texts that occur."""
    known = ids >= 0
    used, codes = used_codes(ids[known], count)
    out = np.zeros(len(ids), np.uint32)
    out[known] = codes
    texts = texts_of(used)
    return nullable(out, known).cat.to(pl.Enum(texts)) if texts else pl.Series([None] * len(ids), dtype=pl.Enum([]))
