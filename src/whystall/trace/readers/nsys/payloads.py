"""NCCL's payloads in NVTX: the bytes of a message, its communicator, and that communicator's number of ranks.

An export holds payloads only with ``nsys export --include-blobs=true``. A payload is a header of 32 bytes, whose second
word of 64 bits is the schema, and the fields, at the offsets in the table of entries. NCCL gives the size of one rank's
message for every collective (``collectives.cc`` of NCCL 2.27).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from whystall.trace.readers.nsys.export import FIELDS, RANGES, Export, named

_HEADER: Final = struct.Struct("<QQQQ")
# NVTX_PAYLOAD_ENTRY_TYPE_*: int, unsigned, long, ..., (u)int32, (u)int64, size_t, as 64-bit Linux has them.
_FORMATS: Final = {
    5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q",
}  # fmt: skip
_COMMUNICATOR: Final = "NCCL communicator ID"
_BYTES: Final = "Message size [bytes]"
_RANKS: Final = "No. of ranks"
_PEER: Final = "Peer rank"
_PREFIX: Final = "nccl"
_OPENS: Final = "ncclGroupStart"
_LAUNCHES: Final = "ncclGroupEnd"
_MESSAGES: Final = frozenset({"Send", "Recv"})
# For these, one rank's message is a part of the whole input, or output.
_PARTS_IN: Final = frozenset({"ReduceScatter", "AlltoAll", "AllToAll", "Scatter"})
_PARTS_OUT: Final = frozenset({"AllGather", "AlltoAll", "AllToAll", "Gather"})
_TOLD_OF: Final = frozenset({"AllReduce", "Broadcast", "Reduce", *_MESSAGES, *_PARTS_IN, *_PARTS_OUT})
_MOST_RANKS: Final = 1 << 24
_MOST_BYTES: Final = 1 << 50
_WORD: Final = (1 << 64) - 1
_MOST_ROWS: Final = 1 << 28
COUNTED: Final = "bytes"
"""The dtype of a record that counts bytes: the element type is unknown."""
RECORD: Final = {
    "collective": pl.String, "dtype": pl.String, "in_elements": pl.Int64, "out_elements": pl.Int64, "group": pl.String,
    "group_size": pl.Int64, "peer": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of NCCL on a thread, with the fields of its payload; ``None`` without one."""

    process: int
    thread: int
    begin: int
    end: int
    name: str
    told: Mapping[str, int] | None

    @property
    def communicator(self) -> int | None:
        return None if self.told is None else self.told.get(_COMMUNICATOR)

    @property
    def bytes(self) -> int | None:
        size = None if self.told is None else self.told.get(_BYTES)
        return size if size is not None and 0 <= size <= _MOST_BYTES else None


@dataclass(frozen=True, slots=True)
class _Launching:
    """A time in which a thread launches the kernels of some calls: that of a call, or of the end of a group."""

    process: int
    thread: int
    begin: int
    end: int
    calls: tuple[_Call, ...]


def with_collectives(devices: pl.DataFrame, calls: pl.DataFrame, export: Export) -> pl.DataFrame:
    """The device events; NCCL's kernels get the message fields of the calls that launched them.

    ``calls`` are those of the runtime. A kernel stays without a record if its call launched several, or if its group of
    calls both sends and receives or mixes kinds or communicators: its own bytes are unknown then.
    """
    schemas = _schemas(export)
    found = list(_calls(export, schemas)) if schemas else []
    if not any(call.told for call in found):
        if any(call.name[len(_PREFIX) :] in _TOLD_OF for call in found):
            export.source.warnings.append(
                "the sizes of NCCL's messages were not exported: nsys export --include-blobs=true writes them"
            )
        return devices.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in RECORD.items())
    sizes = _sizes_of_communicators(found)
    spans = [one for own in _by_thread(found) for one in _launching(own)]
    records = pl.DataFrame(
        [(one.process, one.thread, one.begin, one.end, *_record(one, sizes)) for one in spans],
        schema={"process": pl.Int64, "globalTid": pl.Int64, "begin": pl.Int64, "end": pl.Int64, **RECORD},
        orient="row",
    )
    return devices.with_row_index("row").join(
        _launched(devices, calls, records), on="row", how="left", maintain_order="left"
    ).drop("row")  # fmt: skip


def _launched(devices: pl.DataFrame, calls: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """By row of the device events the record of each kernel that is the only one of its launching time."""
    kernels = devices.with_row_index("row").filter(
        (pl.col("kind") == "kernel") & pl.col("name").str.to_lowercase().str.contains(_PREFIX, literal=True)
    )
    launches = calls.select("process", "correlation", "globalTid", at="ts_ns").unique(
        ["process", "correlation"], keep="first", maintain_order=True
    )
    placed = kernels.select("row", "process", "correlation").join(launches, on=["process", "correlation"])
    spans = records.with_row_index("span").sort("begin")
    met = placed.sort("at").join_asof(
        spans, left_on="at", right_on="begin", by=["process", "globalTid"], strategy="backward", check_sortedness=False
    )
    inside = met.filter(pl.col("at") <= pl.col("end"))
    return inside.filter(pl.len().over("span") == 1).select("row", *RECORD)


def _record(one: _Launching, sizes: Mapping[tuple[int, int], int]) -> tuple[str | int | None, ...]:
    """The record of the launches in a stretch, in the order of `RECORD`; empty if its calls differ in kind."""
    first = one.calls[0] if one.calls else None
    told = {(call.name, call.communicator) for call in one.calls}
    name = "" if first is None else first.name[len(_PREFIX) :]
    several = len(one.calls) > 1
    if first is None or len(told) > 1 or name not in _TOLD_OF or (several and name in _MESSAGES):
        return (None,) * len(RECORD)
    communicator = first.communicator
    ranks = None if communicator is None else sizes.get((one.process, communicator))
    counts = [call.bytes for call in one.calls]
    size = None if None in counts else _bounded(sum(count for count in counts if count is not None))
    peer = None if first.told is None or name not in _MESSAGES else first.told.get(_PEER, -1)
    return (
        name.lower() if name in _MESSAGES else name,
        None if size is None else COUNTED,
        _times(size, ranks) if name in _PARTS_IN else size,
        _times(size, ranks) if name in _PARTS_OUT else size,
        None if communicator is None else f"0x{communicator & _WORD:x}",
        ranks,
        peer if peer is not None and 0 <= peer < _MOST_RANKS else None,
    )


def _times(size: int | None, ranks: int | None) -> int | None:
    return None if size is None or ranks is None else _bounded(size * ranks)


def _bounded(size: int) -> int | None:
    return size if size <= _MOST_BYTES else None


def _sizes_of_communicators(calls: Iterable[_Call]) -> dict[tuple[int, int], int]:
    """The number of ranks by process and communicator, where a recorded payload states it."""
    sizes: dict[tuple[int, int], int] = {}
    for call in calls:
        ranks = None if call.told is None else call.told.get(_RANKS)
        if ranks is not None and 0 < ranks <= _MOST_RANKS and call.communicator is not None:
            sizes[call.process, call.communicator] = ranks
    return sizes


def _by_thread(calls: Iterable[_Call]) -> Iterator[list[_Call]]:
    ordered = sorted(calls, key=lambda call: (call.process, call.thread, call.begin, -call.end))
    for _, own in itertools.groupby(ordered, key=lambda call: (call.process, call.thread)):
        yield list(own)


def _launching(calls: Iterable[_Call]) -> Iterator[_Launching]:
    """When a thread launches: in a call itself, or where calls are grouped when the outermost group ends."""
    depth, waiting = 0, list[_Call]()
    for call in calls:
        if call.name == _OPENS:
            waiting, depth = [] if not depth else waiting, depth + 1
        elif call.name == _LAUNCHES:
            # A group that was open when the recording began has calls that were not recorded.
            whole = depth == 1
            depth = max(depth - 1, 0)
            if not depth:
                yield _Launching(call.process, call.thread, call.begin, call.end, tuple(waiting) if whole else ())
        elif depth:
            waiting.append(call)
        else:
            yield _Launching(call.process, call.thread, call.begin, call.end, (call,))


@dataclass(frozen=True, slots=True)
class _Schema:
    fields: tuple[tuple[str, int, struct.Struct], ...]

    def values(self, payload: bytes) -> dict[str, int]:
        """The fields that the payload is long enough for."""
        return {
            name: of.unpack_from(payload, offset)[0]
            for name, offset, of in self.fields
            if 0 <= offset <= len(payload) - of.size
        }


_Schemas = Mapping[tuple[int, int], _Schema]


def _schemas(export: Export) -> _Schemas:
    """By domain and number NCCL's schemas: those that have a communicator."""
    integers = dict.fromkeys(("domainId", "schemaId", "type", "offset"), int)
    rows = export.source.read(FIELDS, {**integers, "name": str}, needed=("domainId", "schemaId", "type", "name"))
    found: dict[tuple[int, int], dict[str, tuple[str, int, struct.Struct]]] = {}
    for domain, schema, kind, offset, name in rows.select("domainId", "schemaId", "type", "offset", "name").iter_rows():
        if kind in _FORMATS and name is not None:
            found.setdefault((domain, schema), {})[name] = (name, offset or 0, struct.Struct(_FORMATS[kind]))
    return {key: _Schema(tuple(fields.values())) for key, fields in found.items() if _COMMUNICATOR in fields}


def _calls(export: Export, schemas: _Schemas) -> Iterator[_Call]:
    """The calls in NCCL's domains whose times can be true."""
    integers = dict.fromkeys(("start", "end", "globalTid", "textId", "domainId"), int)
    columns: dict[str, type[int | str | bytes]] = {**integers, "text": str, "binaryData": bytes}
    own = pl.col("domainId").is_in(list({domain for domain, _ in schemas}))
    sound = (pl.col("end") >= pl.col("start")) & pl.col("globalTid").is_not_null()
    needed = ("start", "end", "globalTid", "domainId")
    parts = [part.filter(sound & own) for part in export.source.parts(RANGES, columns, needed, most=_MOST_ROWS)]
    if not parts:
        return
    rows = pl.concat(parts)
    texts = named(rows["textId"], export.names(rows.filter(pl.col("text").is_null())["textId"]))
    rows = rows.with_columns(export.process_of("globalTid"), pl.coalesce("text", texts).alias("text"))
    chosen = rows.filter(pl.col("text").str.starts_with(_PREFIX)).select(
        "process", "globalTid", "start", "end", "text", "domainId", "binaryData"
    )
    for process, thread, begin, end, name, domain, payload in chosen.iter_rows():
        yield _Call(process, thread, begin, end, name, _told(domain, payload, schemas))


def _told(domain: int, payload: bytes | None, schemas: _Schemas) -> dict[str, int] | None:
    if payload is None or len(payload) < _HEADER.size:
        return None
    number, size = _HEADER.unpack_from(payload)[1:3]
    schema = schemas.get((domain, number))
    rest = payload[_HEADER.size :]
    return None if schema is None or size > len(rest) else schema.values(rest[:size])
