"""Writes an export's database as the folder of Parquet files that Nsight Systems makes of the same recording."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def as_folder(database: Path, folder: Path, **how: Any) -> Path:
    """Every table of the database, those that hold secrets included, as a file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    for (table,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
        cursor = connection.execute(f'select * from "{table}"')
        names = [column[0] for column in cursor.description]
        columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
        arrays = dict(zip(names, map(_array, columns), strict=True))
        pq.write_table(pa.table(arrays), folder / f"{table}.parquet", **how)
    connection.close()
    return folder


def _array(values: tuple[Any, ...]) -> Any:
    """Whole numbers or blobs where all are such, as the writer types its columns; otherwise texts."""
    if {type(value) for value in values} - {type(None)} == {bytes}:
        return pa.array(values, pa.binary())
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
