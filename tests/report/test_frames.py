from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal

from whystall.report.frames import TABLES, csv_files, numbered_tables, parquet_files

NAMES = pl.Enum(["=cmd|' /C calc'!A0", "aten::mm"])


def names() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": pl.Series(["=cmd|' /C calc'!A0", "aten::mm", None], dtype=NAMES),
            "text": ["-1", "@x", "plain"],
            "duration_ns": [-5, 7, None],
            "dims": [[1, 2], [], None],
        }
    )


def recording() -> Any:
    return SimpleNamespace(**{table: names() for table in TABLES})


def test_every_table_has_a_file_with_the_rows_that_others_refer_to() -> None:
    assert set(parquet_files(recording())) == {f"{table}.parquet" for table in TABLES}
    assert set(csv_files(recording())) == {f"{table}.csv" for table in TABLES}
    assert all(frame["row"].to_list() == [0, 1, 2] for frame in numbered_tables(recording()).values())


def test_csv_defuses_what_a_spreadsheet_would_run_and_leaves_numbers() -> None:
    stream = io.BytesIO()

    csv_files(recording())["operators.csv"](stream)

    assert stream.getvalue().decode().splitlines() == [
        "row,name,text,duration_ns,dims",
        "0,'=cmd|' /C calc'!A0,'-1,-5,\"[1, 2]\"",
        "1,aten::mm,'@x,7,[]",
        "2,,plain,,",
    ]


def test_parquet_keeps_values_and_types() -> None:
    stream = io.BytesIO()

    parquet_files(recording())["operators.parquet"](stream)
    stream.seek(0)

    assert_frame_equal(pl.read_parquet(stream).drop("row"), names())
