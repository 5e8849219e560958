"""Opening and feeding files: gzip in all its forms, limits, and files that are no traces."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from whystall.errors import InputError
from whystall.testing import trace
from whystall.trace import files as files_module
from whystall.trace.files import CHUNK_BYTES, Limits
from whystall.trace.load import load_trace
from whystall.trace.model import Trace
from whystall.trace.readers.kineto import scan as scan_module
from whystall.trace.readers.kineto.scan import scan_file

EVENTS = 300


@pytest.fixture(scope="module")
def document() -> bytes:
    built = trace()
    for i in range(EVENTS):
        built.operator(f"op{i}", at=1000 * i, lasts=10)
    return built.json().encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def read(path: Path, content: bytes, **limits: int) -> Trace:
    path.write_bytes(content)
    return load_trace(path, cache=False, limits=Limits(**limits))


def refusal(path: Path, content: bytes | None = None) -> str:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_trace(path, cache=False)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path.parent) + "/")


# --- gzip ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace"])
def test_gzip_is_known_by_content_not_by_name(tmp_path: Path, document: bytes, name: str) -> None:
    for content in (document, gzip.compress(document)):
        loaded = read(tmp_path / name, content)
        assert (len(loaded.operators), loaded.source.warnings) == (EVENTS, ())
        assert (loaded.source.file_bytes, loaded.source.raw_bytes) == (len(content), len(document))


@pytest.mark.parametrize("members", [2, 3, 50])
def test_gzip_members_follow_each_other(path: Path, document: bytes, members: int) -> None:
    size = len(document) // members + 1
    content = b"".join(gzip.compress(document[at : at + size]) for at in range(0, len(document), size))
    loaded = read(path, content)
    assert (len(loaded.operators), loaded.source.warnings) == (EVENTS, ())


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
def test_members_may_end_anywhere_in_a_piece(
    path: Path, document: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "CHUNK_BYTES", chunk)
    half = len(document) // 2
    loaded = read(path, gzip.compress(document[:half]) + b"\x00" * 10 + gzip.compress(document[half:]))
    assert (len(loaded.operators), loaded.source.warnings) == (EVENTS, ())


def test_zeros_after_the_stream_are_padding(path: Path, document: bytes) -> None:
    assert read(path, gzip.compress(document) + b"\x00" * 100_000).source.warnings == ()


@pytest.mark.parametrize("garbage", [b"garbage", b"\x00\x00garbage", b"{}" * 1000, b"\x1e\x8b"])
def test_garbage_after_the_stream_is_named(path: Path, document: bytes, garbage: bytes) -> None:
    loaded = read(path, gzip.compress(document) + garbage)
    assert len(loaded.operators) == EVENTS
    assert loaded.source.warnings == ("what follows the end of the gzip stream is no gzip: it was not read",)


def test_damage_after_the_stream_is_named(path: Path, document: bytes) -> None:
    loaded = read(path, gzip.compress(document) + b"\x1f\x8b and then nothing that makes sense" * 10)
    assert len(loaded.operators) == EVENTS
    assert any("damaged" in warning for warning in loaded.source.warnings)


def test_a_truncated_stream_keeps_what_came_before(path: Path, document: bytes) -> None:
    packed = gzip.compress(document)
    for cut in (len(packed) // 2, len(packed) * 3 // 4):
        loaded = read(path, packed[:cut])
        assert 0 < len(loaded.operators) < EVENTS
        assert loaded.source.truncated
        assert "the gzip stream ends early: everything before its end is kept" in loaded.source.warnings


def test_a_wrong_checksum_is_named(path: Path, document: bytes) -> None:
    packed = bytearray(gzip.compress(document))
    packed[-6] ^= 0xFF
    loaded = read(path, bytes(packed))
    assert len(loaded.operators) == EVENTS
    assert any("damaged" in warning for warning in loaded.source.warnings)


def test_damage_in_the_middle_keeps_all_that_precedes_it(path: Path, document: bytes) -> None:
    packed = gzip.compress(document)
    for at in range(500, len(packed) - 10, 300):
        broken = packed[:at] + b"\xff" * 8 + packed[at + 8 :]
        plain = zlib.decompressobj(31)
        sound = len(plain.decompress(packed[: at - 1]))
        loaded = read(path, broken)
        assert loaded.source.raw_bytes >= sound - 16
        assert any("damaged" in warning or "ends early" in warning for warning in loaded.source.warnings)


def test_damage_in_a_later_member(path: Path, document: bytes) -> None:
    half = len(document) // 2
    second = bytearray(gzip.compress(document[half:]))
    second[len(second) // 2 : len(second) // 2 + 8] = b"\xff" * 8
    loaded = read(path, gzip.compress(document[:half]) + bytes(second))
    assert loaded.source.raw_bytes > half
    assert EVENTS // 2 < len(loaded.operators) < EVENTS


def test_a_header_with_everything(path: Path, document: bytes) -> None:
    deflated = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = deflated.compress(document) + deflated.flush()
    header = b"\x1f\x8b\x08\x1c" + b"\0" * 6 + b"\x04\x00abcd" + b"name.json\0" + b"a comment\0"
    tail = zlib.crc32(document).to_bytes(4, "little") + len(document).to_bytes(4, "little")
    assert len(read(path, header + body + tail).operators) == EVENTS


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b",
        b"\x1f\x8b\x08",
        gzip.compress(b"", mtime=0),
        gzip.compress(b"x" * 1000, mtime=0)[:12],
        b"\x1f\x8b" + b"\xff" * 50,
    ],
)
def test_gzip_without_contents(path: Path, content: bytes) -> None:
    assert refusal(path, content).startswith(("trace.json is empty", "trace.json is in no format that whystall reads"))


# --- limits -------------------------------------------------------------------------------------------


def test_the_event_limit(path: Path, document: bytes) -> None:
    loaded = read(path, document, events=10)
    assert len(loaded.operators) == 10
    assert loaded.source.warnings == ("reading stopped after 10 events, the limit",)
    assert not loaded.source.truncated


def test_the_byte_limit(path: Path) -> None:
    built = trace()
    for i in range(20_000):
        built.operator("op", at=i, lasts=1)
    for content in (built.json().encode(), gzip.compress(built.json().encode())):
        loaded = read(path, content, raw_bytes=CHUNK_BYTES)
        assert 0 < len(loaded.operators) < 20_000
        assert f"reading stopped after {CHUNK_BYTES:,} bytes of JSON, the limit" in loaded.source.warnings
        assert loaded.source.truncated


def test_a_gzip_bomb_ends_at_the_limit(path: Path, document: bytes) -> None:
    head = document[: document.rindex(b"]")]
    loaded = read(path, gzip.compress(head + b" " * 100_000_000), raw_bytes=1 << 20)
    assert len(loaded.operators) == EVENTS
    assert loaded.source.raw_bytes < 3 << 20


def test_what_holds_a_thousand_times_its_size_is_no_recording(path: Path, document: bytes) -> None:
    """And what holds sixty times its size is read to its end, or where the reader is told to."""
    head = document[: document.rindex(b"]")]
    packed = gzip.compress(head + b" " * 100_000_000 + b"]}")
    stopped = read(path, packed, unpacked_bytes=1 << 20)
    assert stopped.source.raw_bytes <= 201 * len(packed) + CHUNK_BYTES
    assert any("--no-limits reads all of it" in warning for warning in stopped.source.warnings)
    assert len(stopped.operators) == EVENTS
    for loaded in (read(path, packed), read(path, packed, unpacked_times=2_000, unpacked_bytes=1 << 20)):
        assert loaded.source.raw_bytes > 100_000_000
        assert not [warning for warning in loaded.source.warnings if "reading stopped" in warning]


def test_one_endless_event_is_passed_over(path: Path, document: bytes) -> None:
    endless = b'{"ph": "X", "name": "' + b"x" * 3_000_000 + b'"},'
    at = document.index(b"[") + 1
    loaded = read(path, document[:at] + endless + document[at:], value_bytes=100_000)
    assert len(loaded.operators) == EVENTS
    assert any("could not be parsed" in warning for warning in loaded.source.warnings)


# --- no traces ----------------------------------------------------------------------------------------


UNKNOWN = (
    "trace.json is in no format that whystall reads. "
    "It reads JSON of rocprofv3 (rocprofv3 --output-format json); "
    "profiles of XLA and JAX (*.xplane.pb); "
    "Perfetto traces of the PyTorch profiler (*.pftrace); "
    "traces of the PyTorch profiler (JSON that starts with '{' or '['); "
    "SQLite exports of Nsight Systems (nsys export --type sqlite); "
    "Parquet exports of Nsight Systems (nsys export --type parquetdir, the folder *_pqtdir); "
    "rocpd databases (rocprofv3 --output-format rocpd); "
    "CSV of rocprofv3 (*_kernel_trace.csv, with the job's other files beside it)"
)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "trace.json is empty"),
        (b"hello", UNKNOWN),
        (b"null", UNKNOWN),
        (b" " * (1 << 17) + b"hello", "trace.json is not JSON: a PyTorch trace starts with '{' or '['"),
        (b"{}", "trace.json is JSON but no trace: it has no 'traceEvents'"),
        (b'{"nodes": [1, 2]}', "trace.json is JSON but no trace: it has no 'traceEvents'"),
        (b'{"traceEvents": {}}', "trace.json is JSON but no trace: it has no 'traceEvents'"),
        (b"[1,2,3]", "trace.json is a JSON list but no trace: it holds no trace events"),
        (b'[{"name": "John"}]', "trace.json is a JSON list but no trace: it holds no trace events"),
        (b"[null]", "trace.json is a JSON list but no trace: it holds no trace events"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(path: Path, content: bytes, sentence: str) -> None:
    assert refusal(path, content) == sentence


@pytest.mark.parametrize("content", [b"[]", b'{"traceEvents": []}', b' [ { "ph" : "M" } ] ', b'[1, {"ph":"X"}]'])
def test_what_is_a_trace_though_it_holds_little(path: Path, content: bytes) -> None:
    assert read(path, content).operators.is_empty()


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nothing.json") == "nothing.json: no such file"
    (tmp_path / "folder.json").mkdir()
    assert refusal(tmp_path / "folder.json") == "folder.json is a folder, not a trace"
    assert "cannot be read" in refusal(tmp_path / ("x" * 300))


def test_a_file_that_may_not_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    path.write_bytes(b"{}")
    monkeypatch.setattr(os, "open", denied)
    assert refusal(path) == "trace.json: permission denied"


def test_a_disk_that_fails_while_reading(path: Path, document: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    path.write_bytes(document)
    monkeypatch.setattr(scan_module, "_feed", broken)
    assert refusal(path) == "trace.json: cannot be read (Input/output error)"


def test_progress_ends_at_the_size_of_the_file(path: Path, document: bytes) -> None:
    for content in (document, gzip.compress(document)):
        path.write_bytes(content)
        seen: list[tuple[int, int | None]] = []
        scan_file(path, progress=lambda done, size, seen=seen: seen.append((done, size)))  # type: ignore[misc]
        assert seen[-1] == (len(content), len(content))
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("end", [b"", b"]", b"}", b"]}", b"]}garbage", b"\x00" * 5000])
def test_ends_of_files(path: Path, end: bytes) -> None:
    event = json.dumps({"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 2}).encode()
    loaded = read(path, b'{"traceEvents": [' + event + end)
    assert len(loaded.operators) == 1
    assert loaded.source.truncated == (b"]}" not in end)
