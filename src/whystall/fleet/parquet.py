"""Columns of Parquet files of strangers, decoded in a process of its own.

Polars' decoder ends the whole process on some damaged files (a size of exabytes), which no ``except`` catches; here it
ends a child, and the caller gets a sentence.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import polars as pl

from whystall.errors import InputError

__all__ = ["Kind", "read_columns"]

Kind = Literal["int", "float", "text"]
_TYPES: Final[Mapping[str, type[pl.DataType]]] = {"int": pl.Int64, "float": pl.Float64, "text": pl.String}
_DAMAGED: Final = 3  # the child's exit code where Polars itself reports the damage
_LONGEST_S: Final = 600


def read_columns(path: Path, kinds: Mapping[str, Kind]) -> pl.DataFrame:
    """The named columns as their kinds. Raises ``InputError`` where the file or a column is missing or damaged."""
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "columns.arrow"
        asked = [f"{name}={kind}" for name, kind in kinds.items()]
        try:
            ended = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-P", "-m", "whystall.fleet.parquet", str(path), str(target), *asked],
                capture_output=True,
                timeout=_LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InputError(f"{path} cannot be read as Parquet within {_LONGEST_S} s") from error
        if ended.returncode == _DAMAGED:
            raise InputError(f"{path} {ended.stdout.decode('utf-8', 'replace').strip()}")
        if ended.returncode or not target.is_file():
            raise InputError(f"{path} cannot be read as Parquet: it is damaged, or larger than memory")
        return pl.read_ipc(io.BytesIO(target.read_bytes()))


def _child(source: str, target: str, asked: list[str]) -> int:
    """The exit code, after the columns were written or the error was printed."""
    kinds = dict(one.rsplit("=", 1) for one in asked)
    try:
        lazy = pl.scan_parquet(source, glob=False)
        missing = sorted(set(kinds) - set(lazy.collect_schema().names()))
        if missing:
            return _say(f"lacks the columns {', '.join(missing)}")
        columns = [pl.col(name).cast(_TYPES[kind]) for name, kind in kinds.items()]
        lazy.select(columns).collect().write_ipc(target)
    except (pl.exceptions.PolarsError, OSError) as error:
        return _say(f"cannot be read as Parquet: {(str(error).splitlines() or ['it is damaged'])[0]}")
    return 0


def _say(sentence: str) -> int:
    sys.stdout.write(sentence)
    return _DAMAGED


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1], sys.argv[2], sys.argv[3:]))
