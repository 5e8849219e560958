"""One rank's collectives, instance by instance, as columns that are small enough to travel from a thousand ranks."""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.communication import Collectives

MOST_INSTANCES: Final = 60_000
"""Number of instances to keep for a rank, from the beginning: the others' first ones are their counterparts."""
KEY_COLUMNS: Final = {
    "collective": pl.String,
    "group": pl.String,
    "group_size": pl.Int64,
    "group_ranks": pl.String,
    "dtype": pl.String,
    "bytes": pl.Int64,
    "device": pl.Int64,
}
_NO_NUMBER: Final = -1
_LEVEL: Final = 6

Key = tuple[str | None, str | None, int | None, str | None, str | None, int | None, int | None]


class Instances(msgspec.Struct, frozen=True, array_like=True):
    """The instances by start: distinct ``keys``, and packed columns: key, number, start, duration, overlap.

    Times are nanoseconds of the rank's own clock, sequence numbers -1 where the recording has none. ``left_out`` is the
    number of later ones that were dropped.
    """

    keys: list[Key]
    count: int
    key: bytes
    sequence: bytes
    start: bytes
    duration: bytes
    overlap: bytes
    left_out: int = 0

    def table(self, most: int | None = None) -> pl.DataFrame:
        """The first ``most`` instances as a table of `Collectives` without the columns of elements."""
        key = _unpacked(self.key, self.count)[:most]
        sequence = np.cumsum(_unpacked(self.sequence, self.count))[:most]
        start = np.cumsum(_unpacked(self.start, self.count))[:most]
        names = pl.DataFrame(self.keys, schema=KEY_COLUMNS, orient="row")
        return names[key].with_columns(
            pl.Series("sequence_number", sequence).replace(_NO_NUMBER, None),
            pl.Series("start", start),
            pl.Series("end", start + _unpacked(self.duration, self.count)[:most]),
            pl.Series("overlap", _unpacked(self.overlap, self.count)[:most]),
        )

    def collectives(self, rank: int, most: int | None = None) -> Collectives:
        """The same as in an analysis of the rank's trace."""
        return Collectives(rank, self.table(most))


def packed_instances(table: pl.DataFrame) -> Instances:
    """The columns of a table of `Collectives` that `Instances.table` gives back; the first `MOST_INSTANCES` by start.

    >>> row = {"collective": ["allreduce"], "group": ["0"], "group_size": [2], "group_ranks": ["[0, 1]"]}
    >>> row |= {"dtype": ["Float"], "bytes": [64], "device": [0]}
    >>> row |= {"sequence_number": [7], "start": [100], "end": [130], "overlap": [5]}
    >>> packed_instances(pl.DataFrame(row)).table().row(0)
    ('allreduce', '0', 2, '[0, 1]', 'Float', 64, 0, 7, 100, 130, 5)
    """
    columns = [pl.col(name).cast(kind) for name, kind in KEY_COLUMNS.items()]
    whole = table.select(*columns, "sequence_number", "start", "end", "overlap")
    kept = whole.sort("start", "end", *KEY_COLUMNS, maintain_order=True).head(MOST_INSTANCES)
    distinct = kept.select(*KEY_COLUMNS).unique(maintain_order=True).with_row_index("key")
    key = kept.join(distinct, on=list(KEY_COLUMNS), how="left", nulls_equal=True, maintain_order="left")["key"]
    start, end = kept["start"].to_numpy(), kept["end"].to_numpy()
    return Instances(
        keys=distinct.select(*KEY_COLUMNS).rows(),
        count=len(kept),
        key=_packed(key.to_numpy()),
        sequence=_packed(_steps(kept["sequence_number"].cast(pl.Int64).fill_null(_NO_NUMBER).to_numpy())),
        start=_packed(_steps(start)),
        duration=_packed(end - start),
        overlap=_packed(kept["overlap"].to_numpy()),
        left_out=len(whole) - len(kept),
    )


def _steps(values: NDArray[Any]) -> NDArray[np.int64]:
    """The first value and from there the differences, which pack better."""
    own = values.astype(np.int64)
    return np.concatenate([own[:1], own[1:] - own[:-1]])


def _packed(values: NDArray[Any]) -> bytes:
    """Integers byte plane by byte plane, compressed."""
    planes = np.ascontiguousarray(values.astype("<i8")).view(np.uint8).reshape(-1, 8).T
    return zlib.compress(planes.tobytes(), _LEVEL)


def _unpacked(packed: bytes, count: int) -> NDArray[np.int64]:
    """The integers; at most ``count`` of them, for any bytes. Raises ``ValueError`` for fewer."""
    planes = zlib.decompressobj().decompress(packed, 8 * count) if count else b""
    if len(planes) != 8 * count:
        raise ValueError("a summary's columns are shorter than it says")
    table = np.frombuffer(planes, np.uint8).reshape(8, count).T
    return np.ascontiguousarray(table).view("<i8").reshape(-1).astype(np.int64)
