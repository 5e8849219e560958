"""The tables of a trace as CSV and Parquet files.

Arguments without a column are left out: their content is unknown, too.
"""

from __future__ import annotations

from functools import partial
from typing import IO, TYPE_CHECKING, Final

import polars as pl

from whystall.report.registry import Fill
from whystall.run_folder.samples import LOOKED_AT, PROFILED, SKIPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.trace.model import Trace
    from whystall.trace.samples import RunSamples

TABLES: Final = (
    "threads",
    "steps",
    "operators",
    "python_functions",
    "runtime_calls",
    "device_events",
    "annotations",
    "collectives",
    "memory_events",
    "counters",
    "flows",
    "synchronizations",
)
ROW: Final = "row"

# First characters that a spreadsheet runs as a formula (OWASP, "CSV Injection").
_FORMULA: Final = r"^([=+\-@\t\r])"


def csv_files(trace: Trace) -> dict[str, Fill]:
    """Writers of each table as CSV, by file name."""
    return {f"{name}.csv": partial(write_csv, frame) for name, frame in numbered_tables(trace).items()}


def parquet_files(trace: Trace) -> dict[str, Fill]:
    """Writers of each table as Parquet, by file name."""
    return {f"{name}.parquet": frame.write_parquet for name, frame in numbered_tables(trace).items()}


def write_csv(frame: pl.DataFrame, stream: IO[bytes]) -> None:
    """Writes a table as CSV that a spreadsheet does not run."""
    frame.select(_plain(column) for column in frame.iter_columns()).write_csv(stream)


def write_steps(samples: Sequence[RunSamples], stream: IO[bytes]) -> None:
    """Writes every step of all ranks as CSV: times in microseconds, as `run_folder/samples.py` names the columns."""
    frames = [
        one.steps.select(
            pl.lit(one.rank).alias("rank"),
            pl.exclude("flags"),
            ((pl.col("flags") & PROFILED) != 0).alias("profiled"),
            ((pl.col("flags") & LOOKED_AT) != 0).alias("looked_at"),
            ((pl.col("flags") & SKIPPED) != 0).alias("skipped"),
        )
        for one in samples
    ]
    write_csv(pl.concat(frames, how="diagonal"), stream)


def numbered_tables(trace: Trace) -> dict[str, pl.DataFrame]:
    """The tables by name; other tables refer to the column ``row``."""
    return {name: _numbered(getattr(trace, name)) for name in TABLES}


def _numbered(frame: pl.DataFrame) -> pl.DataFrame:
    return frame if ROW in frame.columns else frame.with_row_index(ROW)


def _plain(column: pl.Series) -> pl.Expr:
    """The column as CSV holds it: text that a spreadsheet would run gets an apostrophe in front."""
    name = pl.col(column.name)
    if column.dtype.is_nested():
        return name.map_elements(lambda value: str(value.to_list()), return_dtype=pl.String)
    if isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum):
        return name.cast(pl.String).str.replace(_FORMULA, "'${1}")
    return name
