from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal

from whystall.report.frames import TABLES, table_files, write_table

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
    files = table_files(recording(), "parquet")

    assert set(files) == {f"{table}.parquet" for table in TABLES}
    assert all(frame["row"].to_list() == [0, 1, 2] for frame in files.values())


def test_csv_defuses_what_a_spreadsheet_would_run_and_leaves_numbers() -> None:
    stream = io.BytesIO()

    write_table(names(), "csv", stream)

    assert stream.getvalue().decode().splitlines() == [
        "name,text,duration_ns,dims",
        "'=cmd|' /C calc'!A0,'-1,-5,\"[1, 2]\"",
        "aten::mm,'@x,7,[]",
        ",plain,,",
    ]


def test_parquet_keeps_values_and_types() -> None:
    stream = io.BytesIO()

    write_table(names(), "parquet", stream)
    stream.seek(0)

    assert_frame_equal(pl.read_parquet(stream), names())
