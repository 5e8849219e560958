"""One rank's collectives, instance by instance, as columns that are small enough to travel from a thousand ranks."""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.communication import communication_records, host_collectives
from whystall.analysis.device import devices_of
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.analysis.workings import Workings
from whystall.trace.model import Trace

MOST_INSTANCES: Final = 60_000
"""What is kept of one rank, from the beginning: the others' first ones are their counterparts."""
KEY_COLUMNS: Final = ("collective", "group", "group_size", "group_ranks", "dtype", "bytes")
_KEY_TYPES: Final = {
    "collective": pl.String,
    "group": pl.String,
    "group_size": pl.Int64,
    "group_ranks": pl.String,
    "dtype": pl.String,
    "bytes": pl.Int64,
}
_NO_NUMBER: Final = -1
_LEVEL: Final = 6

_Key = tuple[str | None, str | None, int | None, str | None, str | None, int | None]


class Instances(msgspec.Struct, frozen=True, array_like=True):
    """The instances by start: distinct ``keys``, and packed per instance its key, sequence number, start and duration.

    Times are nanoseconds of the rank's own clock, sequence numbers -1 where the recording has none. ``left_out`` says
    how many came after those that are kept.
    """

    keys: list[_Key]
    count: int
    key: bytes
    sequence: bytes
    start: bytes
    duration: bytes
    left_out: int = 0

    def table(self) -> pl.DataFrame:
        """The instances as a table: the key's columns, ``sequence_number``, ``start`` and ``end``, by start."""
        key = _unpacked(self.key, self.count)
        sequence = np.cumsum(_unpacked(self.sequence, self.count))
        start = np.cumsum(_unpacked(self.start, self.count))
        names = pl.DataFrame(self.keys, schema=_KEY_TYPES, orient="row")
        return names[key].with_columns(
            pl.Series("sequence_number", sequence).replace(_NO_NUMBER, None),
            pl.Series("start", start),
            pl.Series("end", start + _unpacked(self.duration, self.count)),
        )


def instances_of(trace: Trace, workings: Workings) -> Instances:
    """A trace's collectives: those of its devices, or without an accelerator those that ran on the host."""
    return packed_instances(_recorded(trace, workings))


def packed_instances(table: pl.DataFrame) -> Instances:
    """The columns of `Instances.table`, packed; the first `MOST_INSTANCES` by start.

    >>> row = {"collective": ["allreduce"], "group": ["0"], "group_size": [2], "group_ranks": ["[0, 1]"]}
    >>> row |= {"dtype": ["Float"], "bytes": [64], "sequence_number": [7], "start": [100], "end": [130]}
    >>> packed_instances(pl.DataFrame(row)).table().row(0)
    ('allreduce', '0', 2, '[0, 1]', 'Float', 64, 7, 100, 130)
    """
    table = table.sort("start", "end", *KEY_COLUMNS, maintain_order=True)
    kept = table.head(MOST_INSTANCES)
    distinct = kept.select(KEY_COLUMNS).unique(maintain_order=True).with_row_index("key")
    key = kept.join(distinct, on=KEY_COLUMNS, how="left", nulls_equal=True, maintain_order="left")["key"]
    start, end = kept["start"].to_numpy(), kept["end"].to_numpy()
    return Instances(
        keys=distinct.select(KEY_COLUMNS).rows(),
        count=len(kept),
        key=_packed(key.to_numpy()),
        sequence=_packed(_steps(kept["sequence_number"].cast(pl.Int64).fill_null(_NO_NUMBER).to_numpy())),
        start=_packed(_steps(start)),
        duration=_packed(end - start),
        left_out=len(table) - len(kept),
    )


def _recorded(trace: Trace, workings: Workings) -> pl.DataFrame:
    found = []
    for events in devices_of(trace, workings.classified.class_of).values():
        talks = np.flatnonzero(events.class_of == COMMUNICATION)
        records = communication_records(trace, events.row[talks])
        found.append(records.with_columns(start=pl.Series(events.start[talks]), end=pl.Series(events.end[talks])))
    if not found:
        found.append(_on_host(trace))
    columns = [pl.col(name).cast(kind) for name, kind in _KEY_TYPES.items()]
    return pl.concat([one.select(*columns, "sequence_number", "start", "end") for one in found])


def _on_host(trace: Trace) -> pl.DataFrame:
    """Collectives without a device: they end when the library's call returns."""
    records = host_collectives(trace)
    lasting = pl.concat([trace.operators["duration_ns"], trace.annotations["duration_ns"]])
    return records.with_columns(end=pl.col("start") + lasting.gather(records["event"]))


def _steps(values: NDArray[Any]) -> NDArray[np.int64]:
    """The first value and from there the differences, which pack better."""
    own = values.astype(np.int64)
    return np.concatenate([own[:1], own[1:] - own[:-1]])


def _packed(values: NDArray[Any]) -> bytes:
    """Integers byte plane by byte plane, compressed."""
    planes = np.ascontiguousarray(values.astype("<i8")).view(np.uint8).reshape(-1, 8).T
    return zlib.compress(planes.tobytes(), _LEVEL)


def _unpacked(packed: bytes, count: int) -> NDArray[np.int64]:
    """The integers; never more than ``count`` of them, whatever the bytes hold. Raises ``ValueError`` for fewer."""
    planes = zlib.decompressobj().decompress(packed, 8 * count) if count else b""
    if len(planes) != 8 * count:
        raise ValueError("a summary's columns are shorter than it says")
    table = np.frombuffer(planes, np.uint8).reshape(8, count).T
    return np.ascontiguousarray(table).view("<i8").reshape(-1).astype(np.int64)
