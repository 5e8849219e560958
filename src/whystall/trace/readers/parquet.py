"""Reads tables of a folder with one Parquet file each, as from a database: only those that were asked for.

The files are not trusted. The unpacked size of each is bounded before its rows are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from whystall.trace.errors import InputError
from whystall.trace.files import Limits, most_parts
from whystall.trace.readers.parquet_pages import unpacked
from whystall.trace.readers.protobuf import WireError
from whystall.trace.readers.table_source import Kind, Wanted, columns_to_read, completed

SUFFIX: Final = ".parquet"
MAGIC: Final = b"PAR1"
# On a damaged file the Parquet library may also panic where it found its own state impossible.
_FAILURES: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, WireError, OSError)
_MOST_ROWS: Final = 1 << 40
_PART_ROWS: Final = 1 << 20
# Every row of a recording has its own times: a file that unpacks to more is not a hundred times smaller.
_LEAST_BYTES: Final = 64 << 20


class ParquetFolder:
    """The tables of a folder; ``warnings`` gets a sentence on everything in it that could not be read."""

    def __init__(self, folder: Path, tables: Iterable[str], limits: Limits) -> None:
        """Looks for the files of ``tables``. Raises `InputError` where they exceed the limits."""
        self.warnings: list[str] = []
        self.truncated = False
        self._limits = limits
        self._files = files_of(folder, tables)
        self._schemas: dict[str, Mapping[str, pl.DataType]] = {}
        self.size = sum(path.stat().st_size for path in self._files.values())
        if self.size > limits.raw_bytes:
            raise InputError(f"{folder.name} is larger than what is read ({limits.raw_bytes:,} bytes)")

    def has(self, table: str) -> bool:
        """Whether there is a file of this table among the requested ones."""
        return table in self._files

    def columns(self, table: str) -> list[str]:
        """The names of a table's columns, none if it was not requested."""
        return list(self._schema(table))

    def read(self, table: str, columns: Wanted, needed: Sequence[str] = ()) -> pl.DataFrame:
        """The rows of a table; a column that it lacks, or has with another type, is null.

        A table that is not there, or has not the ``needed`` columns, gives no rows.
        """
        found = self._first(table, columns, needed, self._limits.events + 1)
        if len(found) > self._limits.events:
            self._lose(f"the table {table} has more rows than are read: the rest was left out")
        return found.head(self._limits.events)

    def parts(self, table: str, columns: Wanted, needed: Sequence[str] = (), *, most: int) -> Iterator[pl.DataFrame]:
        """The first ``most`` of the same rows, some at a time, so that a caller that reduces them need not hold all."""
        yield from self._first(table, columns, needed, most).iter_slices(_PART_ROWS)

    def _first(self, table: str, columns: Wanted, needed: Sequence[str], most: int) -> pl.DataFrame:
        asked = columns_to_read(table, self.columns(table), columns, needed, self.warnings)
        values = self._values(table, {column: columns[column] for column in asked})
        if not values:
            return completed(None, columns)
        return completed(self._collected(table, self._scan(table).select(values.values()).head(most), values), columns)

    def texts(self, table: str, key: str, value: str, wanted: Iterable[int]) -> dict[int, str]:
        """The texts of the wanted keys of a table that numbers texts, and no others: it may hold whole files."""
        numbers = sorted(set(wanted))
        values = self._values(table, {key: int, value: str})
        if not numbers or len(values) < len((key, value)):
            return {}
        rows = self._scan(table).select(values.values())
        short = pl.col(value).str.len_bytes() <= self._limits.value_bytes
        found = self._collected(table, rows.filter(pl.col(key).is_in(numbers) & short).unique(key, keep="last"), values)
        return {} if found is None else dict(found.rows())

    def _scan(self, table: str) -> pl.LazyFrame:
        return pl.scan_parquet(self._files[table].absolute(), glob=False, hive_partitioning=False)

    def _schema(self, table: str) -> Mapping[str, pl.DataType]:
        """The types of a table's columns; none for a missing or unreadable one."""
        if table not in self._schemas and self.has(table):
            self._schemas[table] = {}
            try:
                unpacked(self._files[table], ())
                self._schemas[table] = dict(self._scan(table).collect_schema())
            except _FAILURES as error:
                self._is_damaged(table, error)
        return self._schemas.get(table, {})

    def _values(self, table: str, columns: Wanted) -> dict[str, pl.Expr]:
        """Expressions for those columns of a table that hold whole numbers or text."""
        schema = self._schema(table)
        found = {column: _as(schema[column], kind, column) for column, kind in columns.items() if column in schema}
        return {column: value for column, value in found.items() if value is not None}

    def _collected(self, table: str, rows: pl.LazyFrame, columns: Collection[str]) -> pl.DataFrame | None:
        path = self._files[table]
        most = max(min(self._limits.unpacked_bytes, _LEAST_BYTES), path.stat().st_size * self._limits.unpacked_times)
        try:
            told = unpacked(path, columns)
            found: pl.DataFrame | None = None
            if told.bytes <= most and told.values <= most_parts(path, self._limits, _MOST_ROWS):
                found = rows.collect()
        except _FAILURES as error:
            self._is_damaged(table, error)
            return None
        # A text or blob that stands once in the file may be that of every row.
        if found is None or _long_bytes(found) > most:
            self._lose(f"the table {table} unpacks to more than a recording holds: it was not read")
            return None
        return found

    def _is_damaged(self, table: str, error: BaseException) -> None:
        # The library's message holds the folder's path.
        reason = f" ({error})" if isinstance(error, WireError) else ""
        self._lose(f"the table {table} is damaged{reason}: it was not read")

    def _lose(self, sentence: str) -> None:
        self.truncated = True
        if sentence not in self.warnings:
            self.warnings.append(sentence)


def files_of(folder: Path, tables: Iterable[str]) -> dict[str, Path]:
    """The files of a folder that hold tables of these names, by table."""
    paths = {table: folder / f"{table}{SUFFIX}" for table in tables}
    return {table: path for table, path in paths.items() if path.is_file()}


def _as(dtype: pl.DataType, kind: Kind, column: str) -> pl.Expr | None:
    """A column as whole numbers, texts or bytes; ``None`` where it holds anything else."""
    if kind is int and dtype.is_integer():
        return pl.col(column).cast(pl.Int64, strict=False)
    if kind is str and isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return pl.col(column).cast(pl.String)
    return pl.col(column) if kind is bytes and dtype == pl.Binary else None


def _long_bytes(table: pl.DataFrame) -> int:
    texts = [table[name].str.len_bytes() for name, dtype in table.schema.items() if dtype == pl.String]
    blobs = [table[name].bin.size() for name, dtype in table.schema.items() if dtype == pl.Binary]
    return sum(int(sizes.sum()) for sizes in (*texts, *blobs))
