"""The tables of a trace as CSV and Parquet files.

Arguments that no column knows stay behind: what is in them is not known either.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final, Literal

import polars as pl

if TYPE_CHECKING:
    from whystall.trace.model import Trace

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
    "flows",
    "synchronizations",
)
ROW: Final = "row"

# What a spreadsheet would run as a formula (OWASP, "CSV Injection").
_FORMULA: Final = r"^([=+\-@\t\r])"


def table_files(trace: Trace, format_: Literal["csv", "parquet"]) -> dict[str, pl.DataFrame]:
    """The tables by the name of the file that each belongs into; ``row`` is what other tables refer to."""
    return {f"{name}.{format_}": _numbered(getattr(trace, name)) for name in TABLES}


def write_table(frame: pl.DataFrame, format_: Literal["csv", "parquet"], stream: IO[bytes]) -> None:
    """Writes ``frame`` to ``stream``."""
    if format_ == "parquet":
        frame.write_parquet(stream)
    else:
        frame.select(_plain(column) for column in frame.iter_columns()).write_csv(stream)


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
