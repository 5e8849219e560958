"""Columns of distinct texts (``Enum``): their texts, and each row's place among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

T = TypeVar("T")


def distinct(column: pl.Series) -> list[str]:
    """The distinct texts of an ``Enum`` column; `codes` counts them from 0."""
    texts: list[str] = _enum(column).categories.to_list()
    return texts


def codes(column: pl.Series) -> NDArray[Any]:
    """Per row the place of its text in `distinct`. The column must have no nulls."""
    places: NDArray[Any] = column.to_physical().to_numpy()
    return places


def matching(column: pl.Series, test: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which rows have a text that passes ``test``, which runs once per distinct text."""
    passed = np.array([bool(test(text)) for text in distinct(column)], np.bool_)
    return passed[codes(column)] if len(passed) else np.zeros(len(column), np.bool_)


def judged(table: pl.DataFrame, judge: Callable[..., T]) -> list[T]:
    """The result of ``judge`` for each row's values, as texts; equal rows are judged once."""
    known: dict[tuple[Any, ...], T] = {}
    out = []
    for row in table.cast(pl.String).iter_rows():
        if row not in known:
            known[row] = judge(*row)
        out.append(known[row])
    return out


def rows_by_value(values: NDArray[Any]) -> dict[int, NDArray[np.intp]]:
    """The rows of each distinct value, ascending; one sort for all of them."""
    if not len(values):
        return {}
    order = np.argsort(values, kind="stable")
    changes = np.flatnonzero(np.diff(values[order])) + 1
    return {int(values[rows[0]]): rows for rows in np.split(order, changes)}


def _enum(column: pl.Series) -> pl.Enum:
    if not isinstance(column.dtype, pl.Enum):
        raise TypeError(f"column {column.name!r} is {column.dtype}, not Enum")
    return column.dtype


def stacked(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Tables of the same columns as one, ``Enum`` columns with the texts of all."""
    columns = {}
    for name in tables[0].columns:
        parts = [table[name] for table in tables]
        if isinstance(parts[0].dtype, pl.Enum):
            texts = list(dict.fromkeys(text for part in parts for text in distinct(part)))
            columns[name] = pl.concat([part.cast(pl.String) for part in parts]).cast(pl.Enum(texts))
        else:
            columns[name] = pl.concat([part.to_frame() for part in parts], how="vertical_relaxed").to_series()
    return pl.DataFrame(columns)
