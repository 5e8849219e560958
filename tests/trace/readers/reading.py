"""What tests of readers begin with: a file of some content, read or refused, and rows of its tables as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whystall.trace.errors import InputError
from whystall.trace.load import load_trace
from whystall.trace.model import Trace


def load(path: Path, content: bytes) -> Trace:
    """The trace in a file of this content."""
    path.write_bytes(content)
    return load_trace(path, cache=False)


def rows(table: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns, texts as texts."""
    return table.select(columns).cast({pl.Enum: pl.String}).rows()


def refusal(path: Path, content: bytes) -> str:
    """The one line with which a file of this content is refused."""
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_trace(path, cache=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)
