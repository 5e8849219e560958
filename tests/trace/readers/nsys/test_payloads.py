"""What NCCL's payloads tell of kernels: sizes by the library's conventions, groups of calls, and what is not known."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trace.readers.nsys.builder import Export
from tests.trace.readers.nsys.folder_builder import as_folder

import whystall
from whystall.trace.load import load_trace, load_traces
from whystall.trace.model import Trace

NCCL = 3
STATIC = 1 << 24
INIT, GATHER, REDUCE, SEND = STATIC, STATIC + 4, STATIC + 5, STATIC + 9
UINT64, SIZE, INT = 18, 22, 5
FIELDS: dict[int, list[tuple[str, int, int | None]]] = {
    INIT: [("NCCL communicator ID", UINT64, None), ("No. of ranks", INT, 8), ("Rank", INT, 12)],
    GATHER: [("NCCL communicator ID", UINT64, None), ("Message size [bytes]", SIZE, 8)],
    REDUCE: [("NCCL communicator ID", UINT64, 0), ("Message size [bytes]", SIZE, 8), ("Reduction", 1 << 25, 16)],
    SEND: [("NCCL communicator ID", UINT64, None), ("Message size [bytes]", SIZE, 8), ("Peer rank", INT, 16)],
}  # fmt: skip
WORLD = 0xFFEE_0000_0000_0001
MEBI = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job.sqlite"


def blob(schema: int, layout: str, *values: int) -> bytes:
    """A payload behind its header, by the layout that readers of real exports document."""
    body = struct.pack("<" + layout, *values)
    return struct.pack("<QQQQ", NCCL, schema, len(body), 32 + len(body)) + body


def message(size: int, communicator: int = WORLD, schema: int = REDUCE) -> bytes:
    return blob(schema, "QQi4x", communicator, size, 2)


def nccl(export: Export | None = None, *, ranks: int | None = 8, pid: int = 10) -> Export:
    """An export with NCCL's schemas, and the beginning of a communicator where it was recorded."""
    export = export or Export()
    for schema, fields in FIELDS.items():
        for number, (name, kind, offset) in enumerate(fields):
            export.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=NCCL, schemaId=schema, idx=number, type=kind, name=name,
                offset=offset,
            )  # fmt: skip
    if ranks is not None:
        begun = blob(INIT, "Qiii4x", WORLD, ranks, 1, 0)
        export.range("ncclCommInitRankConfig", at=1, lasts=5, domain=NCCL, binaryData=begun, pid=pid)
    return export


def call(export: Export, name: str, payload: bytes | None, *, at: int, kernels: int = 1, lasts: int = 10_000) -> Export:
    """A call of NCCL that launches so many kernels."""
    export.range(name, at=at, lasts=100, domain=NCCL, binaryData=payload)
    for number in range(kernels):
        runs_at = at + 1_000 + number * lasts
        export.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at=at + 10 + number, runs_at=runs_at, lasts=lasts)
    return export


def told(trace: Trace) -> list[tuple[Any, ...]]:
    return trace.collectives.select("collective", "dtype", "in_elements", "out_elements", "group", "group_size").rows()


def read(export: Export, path: Path) -> Trace:
    return load_trace(export.write(path), cache=False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclAllReduce", ("AllReduce", 4 * MEBI, 4 * MEBI)),
        ("ncclBroadcast", ("Broadcast", 4 * MEBI, 4 * MEBI)),
        ("ncclAllGather", ("AllGather", 4 * MEBI, 32 * MEBI)),
        ("ncclReduceScatter", ("ReduceScatter", 32 * MEBI, 4 * MEBI)),
        ("ncclAlltoAll", ("AlltoAll", 32 * MEBI, 32 * MEBI)),
    ],
)
def test_a_message_is_one_ranks_share_of_what_the_collective_moves(
    path: Path, name: str, expected: tuple[str, int, int]
) -> None:
    trace = read(call(nccl(), name, message(4 * MEBI), at=100), path)
    kind, given_, got = expected
    assert told(trace) == [(kind, "bytes", given_, got, "0xffee000000000001", 8)]


def test_bandwidth_is_that_of_the_bytes_told(path: Path) -> None:
    """64 MiB over 8 ranks in 1 ms: 67.1 GB/s, times 2 * 7 / 8 over the bus."""
    export = call(nccl(), "ncclAllReduce", message(64 * MEBI), at=100, lasts=1_000_000)
    (found,) = whystall.analyze(export.write(path), cache=False).communication
    assert (found.collective, found.bytes, found.group_size) == ("AllReduce", 64 * MEBI, 8)
    assert found.algbw == pytest.approx(67.108864e9)
    assert found.busbw == pytest.approx(117.440512e9)


def test_without_the_beginning_of_a_communicator_its_size_is_not_known(path: Path) -> None:
    export = call(nccl(ranks=None), "ncclAllReduce", message(MEBI), at=100)
    call(export, "ncclAllGather", message(MEBI, schema=GATHER), at=50_000)
    assert told(read(export, path)) == [
        ("AllReduce", "bytes", MEBI, MEBI, "0xffee000000000001", None),
        ("AllGather", "bytes", MEBI, None, "0xffee000000000001", None),
    ]


def test_calls_of_a_group_are_launched_where_it_ends(path: Path) -> None:
    """Two groups: in the first one call, in the second two, which NCCL makes one kernel of."""
    export = nccl()
    for at, sizes in ((1_000, [MEBI]), (100_000, [2 * MEBI, 3 * MEBI])):
        export.range("ncclGroupStart", at=at, lasts=10, domain=NCCL)
        for number, size in enumerate(sizes):
            export.range("ncclAllReduce", at=at + 100 * (number + 1), lasts=50, domain=NCCL, binaryData=message(size))
        call(export, "ncclGroupEnd", None, at=at + 900)
    assert [row[:3] for row in told(read(export, path))] == [
        ("AllReduce", "bytes", MEBI),
        ("AllReduce", "bytes", 5 * MEBI),
    ]


def test_groups_within_a_group_end_with_it(path: Path) -> None:
    export = nccl()
    for at in (1_000, 3_000):
        export.range("ncclGroupStart", at=at, lasts=10, domain=NCCL)
        export.range("ncclAllReduce", at=at + 100, lasts=50, domain=NCCL, binaryData=message(at))
    export.range("ncclGroupEnd", at=4_000, lasts=10, domain=NCCL)
    call(export, "ncclGroupEnd", None, at=5_000)
    assert [row[:3] for row in told(read(export, path))] == [("AllReduce", "bytes", 4_000)]


def test_which_bytes_are_a_kernels_own_is_not_guessed(path: Path) -> None:
    """A call of two kernels, a group whose beginning is not there, one that sends to and fro, one of two kinds."""
    export = call(nccl(), "ncclAllReduce", message(MEBI), at=1_000, kernels=2)
    call(export, "ncclGroupEnd", None, at=100_000)
    for at, names in ((200_000, ("ncclSend", "ncclSend")), (300_000, ("ncclAllReduce", "ncclBroadcast"))):
        export.range("ncclGroupStart", at=at, lasts=10, domain=NCCL)
        for number, name in enumerate(names):
            export.range(name, at=at + 100 * (number + 1), lasts=50, domain=NCCL, binaryData=message(MEBI))
        call(export, "ncclGroupEnd", None, at=at + 900)
    trace = read(export, path)
    assert told(trace) == []
    assert len(trace.device_events) == 5


def test_a_message_between_two_names_its_peer(path: Path) -> None:
    export = call(nccl(), "ncclSend", blob(SEND, "QQi4x", WORLD, MEBI, 3), at=100)
    trace = read(export, path)
    assert trace.collectives.select("collective", "in_elements", "peers").rows() == [("send", MEBI, "[3]")]


@pytest.mark.parametrize("ranks", [1 << 23, -1, 0])
def test_sizes_that_cannot_be_are_not_told(path: Path, ranks: int) -> None:
    """A quarter of what is believed of one rank, of as many ranks as are believed; and a peer below zero."""
    export = call(nccl(ranks=ranks), "ncclAllGather", message(1 << 48, schema=GATHER), at=100)
    call(export, "ncclSend", blob(SEND, "QQi4x", WORLD, MEBI, -3), at=50_000)
    trace = read(export, path)
    assert trace.collectives["out_elements"].to_list() == [None, MEBI]
    assert trace.collectives["peers"].null_count() == 2


def test_a_launch_on_another_thread_or_outside_a_call_tells_nothing(path: Path) -> None:
    export = nccl().range("ncclAllReduce", at=100, lasts=100, domain=NCCL, binaryData=message(MEBI))
    for tid, at in ((12, 150), (11, 250)):
        export.launch("ncclDevKernel_AllReduce", at=at, runs_at=at + 1_000, lasts=50, tid=tid)
    assert told(read(export, path)) == []


def test_sizes_that_were_not_exported_are_said_to_be_missing(path: Path) -> None:
    trace = read(call(nccl(ranks=None), "ncclAllReduce", None, at=100), path)
    assert trace.source.warnings == (
        "the sizes of NCCL's messages were not exported: nsys export --include-blobs=true writes them",
    )
    assert told(trace) == []


def test_a_folder_says_what_the_database_says(path: Path) -> None:
    export = call(nccl(), "ncclAllReduce", message(MEBI), at=100)
    made = as_folder(export.write(path), path.with_name("job_pqtdir"))
    (one,), (other,) = load_traces(path, cache=False), load_traces(made, cache=False)
    assert told(one) == told(other) == [("AllReduce", "bytes", MEBI, MEBI, "0xffee000000000001", 8)]
    # A column of texts that are none is not read.
    table = pq.read_table(made / "NVTX_EVENTS.parquet")
    place = table.schema.get_field_index("binaryData")
    pq.write_table(table.set_column(place, "binaryData", [["x"] * len(table)]), made / "NVTX_EVENTS.parquet")
    assert told(load_traces(made, cache=False)[0]) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(payload=st.one_of(st.binary(max_size=31), st.integers(0, 55).map(lambda size: message(MEBI)[:size])))
def test_a_damaged_payload_tells_nothing(path: Path, payload: bytes) -> None:
    trace = read(call(nccl(), "ncclAllReduce", payload, at=100), path)
    assert len(trace.device_events) == 1
    assert [row[2] for row in told(trace)] in ([], [None])


@given(schema=st.sampled_from([*FIELDS, 0, 1 << 63]), body=st.binary(max_size=40), size=st.integers(0, (1 << 64) - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
def test_any_fields_are_survived(path: Path, schema: int, body: bytes, size: int) -> None:
    payload = struct.pack("<QQQQ", NCCL, schema, size, 0) + body
    trace = read(call(nccl(), "ncclAllGather", payload, at=100), path)
    assert trace.device_events.select(pl.len()).item() == 1


def test_two_ranks_meet_in_their_communicator(path: Path) -> None:
    """Rank 1 comes 400 us late to each of twenty: the other waits, and the message's time is what is left."""
    export = nccl(ranks=2)
    nccl(export, ranks=2, pid=20)
    for step in range(20):
        at = 10_000 + step * 1_000_000
        for pid, device, late in ((10, 0, 0), (20, 1, 400_000)):
            export.range("ncclAllReduce", at=at, lasts=100, domain=NCCL, pid=pid, binaryData=message(MEBI))
            export.launch(
                "ncclDevKernel_AllReduce", at=at + 10, runs_at=at + 1_000 + late, lasts=500_000 - late, pid=pid,
                device=device,
            )  # fmt: skip
    report = whystall.analyze(export.write(path), cache=False)
    by_rank = {one.rank: one for one in report.communication}
    assert by_rank[0].wait_ns == 20 * 400_000
    assert by_rank[1].wait_ns == 0
    assert {one.bytes for one in report.communication} == {20 * MEBI}
