"""Columns of distinct texts (``Enum``): their texts, and each row's place among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray


def distinct(column: pl.Series) -> list[str]:
    """The distinct texts of an ``Enum`` column; `codes` counts them from 0."""
    texts: list[str] = _enum(column).categories.to_list()
    return texts


def codes(column: pl.Series) -> NDArray[Any]:
    """Per row the place of its text in `distinct`. The column must have no nulls."""
    places: NDArray[Any] = column.to_physical().to_numpy()
    return places


def matching(column: pl.Series, test: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which rows have a text that passes ``test``, which is asked once per distinct text."""
    passed = np.array([bool(test(text)) for text in distinct(column)], np.bool_)
    return passed[codes(column)] if len(passed) else np.zeros(len(column), np.bool_)


def _enum(column: pl.Series) -> pl.Enum:
    if not isinstance(column.dtype, pl.Enum):
        raise TypeError(f"column {column.name!r} is {column.dtype}, not Enum")
    return column.dtype
