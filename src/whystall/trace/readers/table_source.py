"""Queries of readers whose formats are tables, in a database or in a folder of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import polars as pl

Kind = type[int | str | bytes]
Wanted = Mapping[str, Kind]
"""The columns that a reader requests by name, with their kinds."""


class TableSource(Protocol):
    """Tables of a recording: only those requested when it was opened."""

    warnings: list[str]
    """A sentence on everything that could not be read."""
    truncated: bool

    def has(self, table: str) -> bool:
        """Whether there is a table of this name among the requested ones."""

    def columns(self, table: str) -> list[str]:
        """The names of a table's columns, none if it was not requested."""

    def read(self, table: str, columns: Wanted, needed: Sequence[str] = ()) -> pl.DataFrame:
        """The rows of a table; a column that it lacks, and a value of another type, is null.

        A table that is not there, or has not the ``needed`` columns, gives no rows.
        """

    def parts(self, table: str, columns: Wanted, needed: Sequence[str] = (), *, most: int) -> Iterator[pl.DataFrame]:
        """The first ``most`` of the same rows, some at a time, so that a caller that reduces them need not hold all."""

    def texts(self, table: str, key: str, value: str, wanted: Iterable[int]) -> dict[int, str]:
        """The texts of the wanted keys of a table that numbers texts, and no others: it may hold whole files."""


def columns_to_read(
    table: str, there: Sequence[str], wanted: Wanted, needed: Sequence[str], warnings: list[str]
) -> list[str]:
    """Which of the wanted columns a table has; none, with a sentence, where it lacks one that is needed."""
    lacking = [column for column in needed if column not in there]
    if there and lacking:
        warnings.append(f"the table {table} has no column {lacking[0]!r}: it was not read")
    return [] if lacking else [column for column in wanted if column in there]


def completed(found: pl.DataFrame | None, wanted: Wanted) -> pl.DataFrame:
    """The found table with all wanted columns: a missing one is null in every row."""
    dtypes = {column: dtype_of(kind) for column, kind in wanted.items()}
    if found is None:
        return pl.DataFrame(schema=dtypes)
    missing = [column for column in dtypes if column not in found.columns]
    return found.with_columns(pl.lit(None, dtypes[column]).alias(column) for column in missing).select(dtypes.keys())


def dtype_of(kind: Kind) -> type[pl.Int64 | pl.String | pl.Binary]:
    """The type of a column that holds whole numbers, texts or bytes."""
    return _DTYPES[kind]


_DTYPES: Final[dict[Kind, type[pl.Int64 | pl.String | pl.Binary]]] = {int: pl.Int64, str: pl.String, bytes: pl.Binary}
