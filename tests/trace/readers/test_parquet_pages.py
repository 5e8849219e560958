"""What Parquet files unpack to, beside what pyarrow says of them, and headers that are not sound."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whystall.trace.readers.parquet_pages import unpacked
from whystall.trace.readers.protobuf import WireError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.parquet"


def table(count: int = 10_000) -> Any:
    random = Random(0)  # noqa: S311 - reproducible on purpose
    return pa.table(
        {
            "at": [random.randrange(1 << 40) for _ in range(count)],
            "kind": [row % 7 for row in range(count)],
            "text": [f"text {row % 100}" for row in range(count)],
            "gone": pa.nulls(count, pa.int64()),
        }
    )


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("group", [10_000, 3_000])
def test_it_is_what_the_footer_says_without_the_headers(
    path: Path, compression: str, dictionary: bool, version: str, group: int
) -> None:
    pq.write_table(
        table(), path, compression=compression, use_dictionary=dictionary, data_page_version=version,
        row_group_size=group, data_page_size=8_000,
    )  # fmt: skip
    about = pq.read_metadata(path)
    for columns in (["at"], ["kind", "text"], ["at", "kind", "text", "gone"], ["none such"], []):
        chunks = [
            about.row_group(group).column(column)
            for group in range(about.num_row_groups)
            for column in range(about.num_columns)
            if about.row_group(group).column(column).path_in_schema in columns
        ]
        said = sum(chunk.total_uncompressed_size for chunk in chunks)
        found = unpacked(path, columns)
        assert found.values == (10_000 if chunks else 0)
        # The footer counts headers in, some ten to a hundred bytes for each page of at most 8 kB.
        assert said * 0.9 - 200 * len(chunks) <= found.bytes <= said
        assert bool(found.bytes) == bool(chunks)


def test_values_packed_by_what_they_have_in_common_are_refused(path: Path) -> None:
    """Each may take over a megabyte of the one before."""
    pq.write_table(table(), path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    assert unpacked(path, ["at"]).values == 10_000
    with pytest.raises(WireError, match="by what they have in common"):
        unpacked(path, ["text"])


def test_damaged_bytes_are_an_error_or_read_alike(path: Path) -> None:
    pq.write_table(table(500), path, data_page_size=500)
    content = path.read_bytes()
    outcomes = set()
    for seed in range(600):
        random = Random(seed)  # noqa: S311 - reproducible on purpose
        damaged = bytearray(content)
        for _ in range(random.choice((1, 3, 30))):
            near_end = random.random() < 0.7
            damaged[-random.randrange(1, 900) if near_end else random.randrange(len(damaged))] = random.randrange(256)
        path.write_bytes(bytes(damaged[: random.randrange(len(damaged))]) if seed % 10 == 0 else bytes(damaged))
        try:
            outcomes.add(unpacked(path, ["at", "text"]).values >= 0)
        except WireError as error:
            outcomes.add(str(error).count("\n") == 0)
    assert outcomes == {True}
