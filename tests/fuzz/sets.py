"""Damaged recordings of several files by number: bytes of some of the files, values in them, or files that are gone.

A recording is handed around as one packed mapping of names to contents, and written out as files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from tests.fuzz import databases, mutations
from tests.trace.readers import rocprof_csv_builder as rocprof
from tests.trace.readers.nsys.folder_builder import as_folder

_ODD: Final = (
    b"", b"0", b"-1", b"99999999999999999999", b"1e9", b"now", b'"', b'""', b'"a\nb"', b"Agent 99999999999", b"GPU -1",
    b"\xff\xfe", b"ProfilerStep#1", b"<script>alert(1)</script>", b"x" * 100_000, b"9223372036854775807", b"nan",
)  # fmt: skip
_HOW: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"compression": "zstd"},
    {"use_dictionary": False},
    {"data_page_version": "2.0"},
    {"row_group_size": 3},
)
_FOOTER: Final = 1200


def packed(files: dict[str, bytes]) -> bytes:
    """A recording as one piece."""
    return msgspec.msgpack.encode(files)


def put(content: bytes, path: Path) -> Path:
    """Writes a recording's files beside each other, in a folder called as ``path``; the folder."""
    path.mkdir(exist_ok=True)
    for old in path.iterdir():
        old.unlink()
    for name, data in msgspec.msgpack.decode(content, type=dict[str, bytes]).items():
        (path / name).write_bytes(data)
    return path


def exports() -> list[bytes]:
    """Small exports of Nsight Systems; the seed says how they are made into folders."""
    return databases.built()


def damaged_export(seed: int, originals: Sequence[bytes]) -> bytes:
    """The folder of an export that says what is not so, is damaged in some of its files, or both."""
    random = Random(seed)  # noqa: S311 - reproducible on purpose
    content = random.choice(originals)
    if random.random() < 0.6:
        content = databases.rewritten(content, random)
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "case.sqlite"
        database.write_bytes(content)
        made = as_folder(database, Path(folder) / "made", **random.choice(_HOW))
        files = {file.name: file.read_bytes() for file in sorted(made.iterdir())}
    return packed(_hurt(files, random, (_flip, _flip, _flip_footer, _cut)) if random.random() < 0.6 else files)


def jobs() -> list[bytes]:
    """The CSV files of a small job."""
    return [packed({f"77_{name}.csv": rocprof.text(*table).encode() for name, table in rocprof.training().items()})]


def damaged_job(seed: int, originals: Sequence[bytes]) -> bytes:
    """The files of a job with cells and bytes that are not so."""
    random = Random(seed)  # noqa: S311 - reproducible on purpose
    files = msgspec.msgpack.decode(random.choice(originals), type=dict[str, bytes])
    return packed(_hurt(files, random, (_odd_cell, _odd_cell, _odd_cell, _flip, _cut, _any_damage)))


def _hurt(files: dict[str, bytes], random: Random, ways: Sequence[object]) -> dict[str, bytes]:
    out = dict(files)
    for _ in range(random.choice((1, 1, 2, 4))):
        name = random.choice(sorted(out))
        if random.random() < 0.08 and len(out) > 1:
            del out[name]
        else:
            way = random.choice(ways)
            out[name] = way(out[name], random) if callable(way) else out[name]
    return out


def _flip(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 3, 30)) if out else 0):
        out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def _flip_footer(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 3)) if out else 0):
        out[-random.randrange(1, min(len(out), _FOOTER) + 1)] = random.randrange(256)
    return bytes(out)


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _odd_cell(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    row = random.randrange(len(lines))
    cells = lines[row].split(b",")
    cells[random.randrange(len(cells))] = random.choice(_ODD)
    return b"\n".join([*lines[:row], b",".join(cells), *lines[row + 1 :]])


def _any_damage(data: bytes, random: Random) -> bytes:
    return mutations.damaged(random.randrange(1 << 30), [data])
