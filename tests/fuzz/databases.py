"""Damaged SQLite exports by number: bytes of the file, or values, rows, columns and tables of it."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.trace.readers.nsys.builder import training
from tests.trace.readers.nsys.test_payloads import call, message, nccl
from tests.trace.readers.rocpd_builder import job, write

_SAMPLE: Final = "nsys/h100_2gpu_1s.sqlite"
_ODD: Final = (
    None, 0, -1, 1, 7, 59, 60, 127, 1 << 24, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, 1 << 53, (1 << 62), (1 << 63) - 1,
    -(1 << 63), -(1 << 62), 0.5, 1e300, -1e300, float("inf"), "", "x", "7", "soon", "iter 3", "ProfilerStep#1", b"",
    b"\xff\x00", "aten::mm, seq = 99999999999999999999", "aten::mm, sizes = [[[[", "MmBackward0, seq = 1",
    "aten::mm, seq = 3, sizes = [[-1, 0], []]", "Optimizer.step#A.step", "nn.Module: A_0", "<script>alert(1)</script>",
    "ncclDevKernel_AllReduce", "x" * 100_000,
)  # fmt: skip
_HEADER: Final = 100

Mutation = Callable[[sqlite3.Connection, Random], None]


def built() -> list[bytes]:
    """Small exports with everything that is read of them."""
    several = training(pid=20, device=1, export=training(pid=10))
    several.copy(1, 1, 2, at=1_300_000, lasts=50_000, size=1 << 20, correlation=1)
    several.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    several.add("ANALYSIS_DETAILS", globalVid=1, duration=10**7, startTime=0, stopTime=10**7)
    several.add("TARGET_INFO_GPU", id=0, name="NVIDIA H100", totalMemory=1 << 34, smCount=132)
    several.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=10)
    several.metrics(0, "SMs Active [Throughput %]", "GPC Clock Frequency [MHz]").metrics(1, "PCIe")
    for at in range(0, 6_000_000, 500_000):
        several.sample(0, 0, at % 101, at=at).sample(0, 1, 1_980_000_000, at=at).sample(1, 0, 7, at=at)
    call(nccl(several), "ncclAllReduce", message(1 << 20), at=2_000_000)
    several.range("mark", at=1_100_000, lasts=None, kind=34).range("handed", at=1_100_000, lasts=9, kind=60)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.sqlite"
        return [training().write(path).read_bytes(), several.write(path).read_bytes()]


def rocpd() -> list[bytes]:
    """A small rocpd database."""
    with tempfile.TemporaryDirectory() as folder:
        return [write(Path(folder) / "case.db", job()).read_bytes()]


def bases(folder: Path | None) -> list[bytes]:
    """What is damaged: built exports and, where it is, the recorded one."""
    sample = None if folder is None else folder / _SAMPLE
    return [*built(), *([sample.read_bytes()] if sample is not None and sample.exists() else [])]


def damaged(seed: int, originals: Sequence[bytes]) -> bytes:
    """The contents of a file."""
    random = Random(seed)  # noqa: S311 - reproducible on purpose
    content = random.choice(originals)
    if random.random() < 0.6:
        content = rewritten(content, random)
    if random.random() < 0.5:
        for _ in range(random.choice((1, 1, 2, 5))):
            content = random.choice(_BYTES)(content, random)
    return content


def rewritten(content: bytes, random: Random) -> bytes:
    """A sound database that says what is not so."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.sqlite"
        path.write_bytes(content)
        connection = sqlite3.connect(path)
        connection.execute("pragma synchronous = off")
        for _ in range(random.choice((1, 1, 2, 4))):
            with contextlib.suppress(sqlite3.Error):  # a key cannot be text, for one
                random.choice(_ROWS)(connection, random)
        connection.commit()
        connection.close()
        return path.read_bytes()


def _table(connection: sqlite3.Connection, random: Random) -> tuple[str, list[str]]:
    names = "select name from sqlite_master where type = 'table' and (name like 'CUPTI%' or name like 'rocpd%' "
    names += "or name like 'NVTX_EVENTS' "
    names += "or name like 'StringIds' or name like 'TARGET_INFO_%' or name like 'ANALYSIS_DETAILS') order by name"
    table = random.choice([name for (name,) in connection.execute(names)] or ["sqlite_master"])
    return table, [row[1] for row in connection.execute(f"pragma table_info({table})")]


def _some(random: Random) -> str:
    return random.choice(("1", f"rowid % {random.choice((2, 3, 50))} = 0", f"rowid = {random.randrange(1, 20)}"))


def _odd_values(connection: sqlite3.Connection, random: Random) -> None:
    table, columns = _table(connection, random)
    for column in random.sample(columns, min(len(columns), random.choice((1, 1, 3)))):
        update = f"update or ignore {table} set {column} = ? where {_some(random)}"
        connection.execute(update, (random.choice(_ODD),))


def _moved_times(connection: sqlite3.Connection, random: Random) -> None:
    table, columns = _table(connection, random)
    if "start" in columns and "end" in columns:
        change = random.choice(
            (
                "start = end, end = start",
                "start = start * 1000",
                "end = start",
                "start = -start",
                "end = end + 1000000000",
            )
        )
        connection.execute(f"update {table} set {change} where {_some(random)}")


def _lost_rows(connection: sqlite3.Connection, random: Random) -> None:
    connection.execute(f"delete from {_table(connection, random)[0]} where {_some(random)}")


def _more_rows(connection: sqlite3.Connection, random: Random) -> None:
    table, _ = _table(connection, random)
    for _ in range(random.choice((1, 4))):
        connection.execute(f"insert or ignore into {table} select * from {table} where {_some(random)} limit 20000")


def _lost_table(connection: sqlite3.Connection, random: Random) -> None:
    table, _ = _table(connection, random)
    if table != "sqlite_master":
        connection.execute(f"drop table {table}")


def _other_column(connection: sqlite3.Connection, random: Random) -> None:
    table, columns = _table(connection, random)
    if len(columns) > 1 and "id" not in columns:
        connection.execute(f"alter table {table} rename column {random.choice(columns)} to other")


def _view(connection: sqlite3.Connection, random: Random) -> None:
    table, columns = _table(connection, random)
    if table != "sqlite_master" and columns:
        connection.execute(f"drop table {table}")
        endless = "with recursive n(a) as (select 1 union all select a + 1 from n) select a from n"
        connection.execute(f"create view {table} as {endless}")


def _flip_bytes(content: bytes, random: Random) -> bytes:
    out = bytearray(content)
    for _ in range(random.choice((1, 3, 30, 300))):
        out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def _flip_head(content: bytes, random: Random) -> bytes:
    out = bytearray(content)
    out[random.randrange(min(len(out), random.choice((_HEADER, 4096))))] = random.randrange(256)
    return bytes(out)


def _swap_pages(content: bytes, random: Random) -> bytes:
    pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    for _ in range(random.choice((1, 4))):
        one, other = random.randrange(len(pages)), random.randrange(len(pages))
        if random.random() < 0.5:
            pages[one], pages[other] = pages[other], pages[one]
        else:
            pages[one] = pages[other]
    return b"".join(pages)


def _page_heads(content: bytes, random: Random) -> bytes:
    """The kind, the count of cells, the pointers: what SQLite follows."""
    out = bytearray(content)
    for _ in range(random.choice((1, 3, 10))):
        at = random.randrange(0, max(1, len(out) // 4096)) * 4096 + random.randrange(0, 40)
        out[min(at, len(out) - 1)] = random.choice((0, 1, 2, 5, 10, 13, 255, random.randrange(256)))
    return bytes(out)


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


_ROWS: Final[tuple[Mutation, ...]] = (
    _odd_values, _odd_values, _odd_values, _moved_times, _lost_rows, _more_rows, _lost_table, _other_column, _view,
)  # fmt: skip
_BYTES: Final = (_flip_bytes, _flip_bytes, _flip_head, _swap_pages, _page_heads, _truncate)
