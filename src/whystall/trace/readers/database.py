"""Reads tables of an untrusted SQLite file: only the tables asked for, as columns of integers or text.

The file is opened read-only and never written, not even beside it. Tables that were not asked for (exports of profilers
hold the whole environment in some) cannot be reached through the connection at all. The file's size bounds the cost of
a query, so that no page that points at itself and no statement hidden in a schema runs without end.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import polars as pl

from whystall.disk import reading
from whystall.trace.errors import InputError
from whystall.trace.files import Head, Limits
from whystall.trace.readers.table_source import Kind, Wanted, columns_to_read, completed, dtype_of

MAGIC: Final = b"SQLite format 3\x00"
# For a damaged file even the error may hold bytes that are no text.
_FAILURES: Final = (sqlite3.Error, UnicodeError)
_SCHEMA: Final = ("sqlite_master", "sqlite_schema")
_PRAGMAS: Final = ("table_info", "quick_check")
_CHUNK_ROWS: Final = 50_000
# A sound row takes a few steps of SQLite's machine per column, and each column a byte or more: sound exports took up to
# 3 steps per byte of the file.
_STEPS_PER_BYTE: Final = 60
_LEAST_STEPS: Final = 50_000_000
_STEPS_BETWEEN_CALLS: Final = 100_000
_LEAST_ROW_BYTES: Final = 4
_HEADER_BYTES: Final = 100
_LARGEST_PAGE: Final = 1 << 16
_PAGES: Final = tuple(1 << bits for bits in range(9, 17))
_MOST_NUMBERS: Final = 500
_MOST_TABLES: Final = 5_000


def has_table(head: Head, *marks: bytes) -> bool:
    """Whether a file is an SQLite database with a table whose name holds one of some texts."""
    if not head.content.startswith(MAGIC):
        return False
    if any(mark in head.content for mark in marks):
        return True
    try:  # the schema may lie further on than the head reaches
        with Database(head.path, (), Limits()) as database:
            return any(mark.decode("ascii") in table for table in database.listed for mark in marks)
    except InputError:
        return False


class Database:
    """An open file; ``warnings`` gets a sentence on everything in it that could not be read."""

    def __init__(self, path: Path, tables: Iterable[str], limits: Limits) -> None:
        """Opens a file to read ``tables`` alone.

        Raises `InputError` where it cannot be opened, is packed, or is no database.
        """
        self.warnings: list[str] = []
        self.truncated = False
        self._name = path.name
        self._allowed = frozenset(tables)
        self._examined: set[str] = set()
        size = _sound_size(path, limits)
        self._steps_left = max(_LEAST_STEPS, size * _STEPS_PER_BYTE)
        self._most_rows = min(limits.events, max(1, size // _LEAST_ROW_BYTES))
        try:
            self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        except _FAILURES as error:
            raise InputError(f"{path.name} cannot be opened as a database ({error})") from None
        try:
            self._secure(limits)
            self.listed = self._list()
        except _FAILURES as error:
            self._connection.close()
            raise InputError(f"{path.name} is damaged: its list of tables cannot be read ({error})") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def has(self, table: str) -> bool:
        """Whether there is a table of this name among the requested ones."""
        return table in self.listed and table in self._allowed

    def columns(self, table: str) -> list[str]:
        """The names of a table's columns, none if it was not requested."""
        if not self.has(table):
            return []
        with contextlib.suppress(*_FAILURES):
            return [row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")').fetchall()]
        return []

    def read(self, table: str, columns: Wanted, needed: Sequence[str] = ()) -> pl.DataFrame:
        """The rows of a table; a column that it lacks, and a value of another type, is null.

        A table that is not there, or has not the ``needed`` columns, gives no rows.
        """
        parts = list(self._parts(table, columns, needed))
        return completed(pl.concat(parts) if parts else None, columns)

    def parts(self, table: str, columns: Wanted, needed: Sequence[str] = (), *, most: int) -> Iterator[pl.DataFrame]:
        """The first ``most`` of the same rows, some at a time, so that a caller that reduces them need not hold all."""
        for part in self._parts(table, columns, needed, f" LIMIT {most}"):
            yield completed(part, columns)

    def _parts(self, table: str, columns: Wanted, needed: Sequence[str], limit: str = "") -> Iterator[pl.DataFrame]:
        asked = columns_to_read(table, self.columns(table), columns, needed, self.warnings)
        if not asked:
            return
        self._examine(table)
        listed = ", ".join(f'"{column}"' for column in asked)
        # The names are those of the constants that readers pass.
        query = f'SELECT {listed} FROM "{table}"{limit}'  # noqa: S608
        for rows in self._chunks(query, table):
            yield _frame(rows, asked, columns)

    def texts(self, table: str, key: str, value: str, wanted: Iterable[int]) -> dict[int, str]:
        """The texts of the wanted keys of a table that numbers texts, and no others: it may hold whole files."""
        if not {key, value} <= set(self.columns(table)):
            return {}
        self._examine(table)
        found: dict[int, str] = {}
        numbers = sorted(set(wanted))
        for begin in range(0, len(numbers), _MOST_NUMBERS):
            some = numbers[begin : begin + _MOST_NUMBERS]
            marks = ", ".join(map(str, some))
            query = f'SELECT "{key}", "{value}" FROM "{table}" WHERE "{key}" IN ({marks})'  # noqa: S608 - of integers
            for rows in self._chunks(query, table):
                found |= {number: text for number, text in rows if type(number) is int and type(text) is str}
        return found

    def _secure(self, limits: Limits) -> None:
        for statement in ("trusted_schema = OFF", "query_only = ON", "mmap_size = 0", "cell_size_check = ON"):
            self._connection.execute(f"PRAGMA {statement}").close()
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.value_bytes)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._connection.set_progress_handler(self._spent, _STEPS_BETWEEN_CALLS)
        self._connection.set_authorizer(self._authorize)

    def _spent(self) -> int:
        self._steps_left -= _STEPS_BETWEEN_CALLS
        return int(self._steps_left < 0)

    def _authorize(self, action: int, first: str | None, *_: str | None) -> int:
        """The authorizer of statements: allows selects from the requested tables, without functions."""
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and (first in self._allowed or first in _SCHEMA):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _list(self) -> dict[str, str]:
        """The tables with their statements; views and virtual tables, which could hide any statement, are none."""
        rows = self._connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        return {
            name: sql
            for name, sql in rows.fetchmany(_MOST_TABLES)
            if isinstance(name, str) and isinstance(sql, str) and not sql.upper().startswith("CREATE VIRTUAL")
        }

    def _examine(self, table: str) -> None:
        """Looks for damage that a query would pass over in silence, such as a page whose count of rows is too low."""
        if table in self._examined:
            return
        self._examined.add(table)
        try:
            found = self._connection.execute(f'PRAGMA quick_check("{table}")').fetchone()
            problem = None if found is None or found[0] == "ok" else str(found[0]).splitlines()[-1]
        except _FAILURES as error:
            problem = str(error)
        if problem is not None:
            self._lose(f"the table {table} is damaged ({problem[:200]}): rows of it may be missing or wrong")

    def _chunks(self, query: str, table: str) -> Iterator[list[tuple[object, ...]]]:
        """The rows of a query up to the damage, on which there is a warning then."""
        left, problem = self._most_rows, None
        try:
            cursor = self._connection.execute(query)
        except _FAILURES as error:
            cursor, problem = None, error
        while cursor is not None and problem is None:
            rows: list[tuple[object, ...]] = []
            try:
                rows.extend(itertools.islice(cursor, min(_CHUNK_ROWS, left)))  # keeps rows from before an error
            except _FAILURES as error:
                problem = error
            left -= len(rows)
            if rows:
                yield rows
            if not rows or not left:
                break
        if problem is not None:
            kept = f"the {self._most_rows - left:,} rows before are kept"
            self._lose(f"the table {table} could not be read to its end ({problem}): {kept}")
        elif not left:
            self._lose(f"the table {table} has more rows than are read: the rest was left out")

    def _lose(self, sentence: str) -> None:
        self.truncated = True
        self.warnings.append(sentence)


def _sound_size(path: Path, limits: Limits) -> int:
    """The file's size. Raises `InputError` where it is no database that can be opened in place, or too large."""
    try:
        with reading.opened(path) as file:
            header = file.read(_HEADER_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not header.startswith(MAGIC):
        raise InputError(f"{path.name} is packed, and a database is read in place: unpack it and name what comes out")
    if size > limits.raw_bytes:
        raise InputError(f"{path.name} is larger than what is read ({limits.raw_bytes:,} bytes)")
    pages, page = int.from_bytes(header[28:32], "big"), int.from_bytes(header[16:18], "big")
    page = _LARGEST_PAGE if page == 1 else page
    # SQLite would fill the last page with zeros; tables stand one after another: the last ones would be missing.
    if page in _PAGES and (size % page or size < pages * page):
        raise InputError(
            f"{path.name} ends early, with {size:,} of its {pages * page:,} bytes: copy or export it again"
        )
    return size


def _frame(rows: list[tuple[object, ...]], asked: Sequence[str], columns: Wanted) -> pl.DataFrame:
    return pl.DataFrame(
        [
            _series(column, values, columns[column])
            for column, values in zip(asked, zip(*rows, strict=True), strict=True)
        ]
    )


def _series(name: str, values: Sequence[object], kind: Kind) -> pl.Series:
    """A column; SQLite holds any type in any of them, and values of another type than ``kind`` are null."""
    try:
        return pl.Series(name, values, dtype=dtype_of(kind), strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, [value if type(value) is kind else None for value in values], dtype=dtype_of(kind))
