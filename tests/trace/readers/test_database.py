"""Databases that nobody vouches for: views that never end, pages that lie, values of another type."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import polars as pl
import pytest

from whystall.errors import InputError
from whystall.trace.files import Limits
from whystall.trace.readers import database as module
from whystall.trace.readers.database import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a #%? b.sqlite"


def made(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def many(path: Path, rows: int = 5000) -> Path:
    made(path, "create table t (a integer, b text)")
    with sqlite3.connect(path) as connection:
        connection.executemany("insert into t values (?, ?)", ((row, f"text {row}") for row in range(rows)))
    connection.close()
    return path


def opened(path: Path, **limits: int) -> Database:
    return Database(path, ("t",), Limits(**limits))


def test_columns_are_integers_or_text_and_null_where_they_are_not(path: Path) -> None:
    made(
        path, "create table t (a, b)",
        "insert into t values (1, 'x'), ('2', 3), (4.5, null), (null, x'ff'), (x'00', 'y')",
        "insert into t values (-9, cast(x'41ff' as text))",
    )  # fmt: skip
    with opened(path) as database:
        found = database.read("t", {"a": int, "b": str, "c": int})
    assert found.schema == {"a": pl.Int64, "b": pl.String, "c": pl.Int64}
    assert found["a"].to_list() == [1, None, None, None, None, -9]
    assert found["b"].to_list() == ["x", None, None, None, "y", "A�"]
    assert found["c"].to_list() == [None] * 6
    assert database.warnings == []


def test_the_file_is_left_alone(path: Path) -> None:
    before = many(path).read_bytes()
    with opened(path) as database, pytest.raises(sqlite3.DatabaseError):
        database._connection.execute("create table u (a)")
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_view_is_no_table(path: Path) -> None:
    """It could hold any statement, such as one that never ends."""
    endless = "with recursive n(a) as (select 1 union all select a + 1 from n) select a from n"
    made(path, f"create view t as {endless}")
    with opened(path) as database:
        assert not database.has("t")
        assert database.read("t", {"a": int}).is_empty()


def test_a_virtual_table_is_no_table(path: Path) -> None:
    try:
        made(path, "create virtual table t using fts5(a)")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no full text search")
    with opened(path) as database:
        assert not database.has("t")


def test_what_runs_without_end_is_stopped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_STEPS", 100_000)
    monkeypatch.setattr(module, "_STEPS_PER_BYTE", 0)
    monkeypatch.setattr(module, "_STEPS_BETWEEN_CALLS", 1000)
    many(path, 100_000)
    with opened(path) as database:
        found = database.read("t", {"a": int})
    assert len(found) < 100_000
    assert database.truncated
    assert any("could not be read to its end (interrupted)" in warning for warning in database.warnings)


def test_functions_and_other_tables_are_out_of_reach(path: Path) -> None:
    made(path, "create table t (a)", "create table secrets (a)")
    with opened(path) as database:
        for statement in (
            "select * from secrets", "select load_extension('x')", "select randomblob(1)", "attach 'other' as o",
            "pragma writable_schema = 1", "select * from t where a in (select a from secrets)",
        ):  # fmt: skip
            with pytest.raises(sqlite3.Error):
                database._connection.execute(statement)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_file_that_ends_early_is_refused(path: Path, share: float) -> None:
    """Its last tables would be missing, and nothing would say which those were."""
    content = many(path).read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError) as caught:
        opened(path)
    assert str(caught.value) == (
        f"{path.name} ends early, with {int(len(content) * share):,} of its {len(content):,} bytes: "
        "copy or export it again"
    )


def test_a_page_that_is_no_page_ends_the_table(path: Path) -> None:
    content = bytearray(many(path).read_bytes())
    content[-3 * 4096 : -2 * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with opened(path) as database:
        found = database.read("t", {"a": int, "b": str})
    assert 0 < len(found) < 5000
    assert found.rows() == [(row, f"text {row}") for row in range(len(found))]
    assert database.truncated
    assert any("could not be read to its end" in warning for warning in database.warnings)


def test_a_page_that_hides_rows_is_seen(path: Path) -> None:
    """A leaf whose count of cells is lowered gives fewer rows, and SQLite reads it without a word."""
    content = bytearray(many(path).read_bytes())
    page = 4096
    leaf = next(at for at in range(page, len(content), page) if content[at] == 0x0D)
    content[leaf + 3 : leaf + 5] = (3).to_bytes(2, "big")
    path.write_bytes(content)
    with opened(path) as database:
        assert len(database.read("t", {"a": int})) < 5000
    assert database.truncated
    assert any("the table t is damaged" in warning for warning in database.warnings)


def test_a_page_that_points_at_itself_ends(path: Path) -> None:
    content = bytearray(many(path).read_bytes())
    page = 4096
    root = next(at for at in range(page, len(content), page) if content[at] == 0x05)
    cells = int.from_bytes(content[root + 3 : root + 5], "big")
    for cell in range(cells):
        pointer = int.from_bytes(content[root + 12 + 2 * cell : root + 14 + 2 * cell], "big")
        content[root + pointer : root + pointer + 4] = (root // page + 1).to_bytes(4, "big")
    path.write_bytes(content)
    with opened(path) as database:
        database.read("t", {"a": int})
    assert database.truncated


def test_one_value_is_bounded(path: Path) -> None:
    made(
        path,
        "create table t (a integer, b text)",
        "insert into t values (1, 'x'), (2, 'y'), (3, printf('%.100000c', 'z'))",
    )
    with opened(path, value_bytes=50_000) as database:
        assert database.read("t", {"a": int, "b": str}).rows() == [(1, "x")]
    assert database.warnings == [
        "the table t could not be read to its end (string or blob too big): the 1 rows before are kept"
    ]


def test_texts_are_fetched_by_number_and_no_others(path: Path) -> None:
    many(path)
    with opened(path) as database:
        wanted = range(1, 5000, 3)
        assert database.texts("t", "a", "b", [*wanted, 10**9, -1]) == {number: f"text {number}" for number in wanted}
        assert database.texts("u", "a", "b", wanted) == {}


@pytest.mark.parametrize("content", [b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_database_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged: its list of tables cannot be read"):
        opened(path)


def test_a_file_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        opened(path)
