"""A file scanned in parts equals the file scanned from its beginning, or is left to that."""

from __future__ import annotations

import functools
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import TRACES, RealTraces

from whystall._native import Scanner
from whystall.trace.readers.kineto import parts, scan
from whystall.trace.readers.kineto.parts import scanned_in_parts
from whystall.trace.readers.kineto.scan import KEPT_METADATA, scan_file

new = functools.partial(Scanner, KEPT_METADATA, 1 << 31, 16 << 20)


def everything(scanner: Scanner) -> Any:
    """All that a scanner holds, arrays with their types: nothing may depend on how the file was cut."""
    counts = scanner.counts()
    names, threads, kept = scanner.names(), scanner.threads(), scanner.kept()
    texts = scanner.texts(np.arange(scanner.text_count(), dtype=np.int32))

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.tobytes()
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    tables = [{key: plain(value) for key, value in table.items()} for table in scanner.take_tables()]
    return counts, names, threads, kept, texts, tables


def at_once(content: bytes) -> Scanner:
    scanner = new()
    scanner.feed(content)
    scanner.finish()
    return scanner


def in_parts(path: Path, content: bytes, part_bytes: int, new_scanner: Any = new, cores: int = 2) -> Scanner | None:
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return scanned_in_parts(descriptor, len(content), new_scanner, None, part_bytes=part_bytes, cores=cores)
    finally:
        os.close(descriptor)


def real_files() -> list[str]:
    if not TRACES.exists():
        return []
    found = [*TRACES.glob("*.json*"), *TRACES.glob("malformed/*.json*")]
    return sorted(str(file.relative_to(TRACES)) for file in found if file.name not in {"expected.json", "labels.json"})


@pytest.mark.real_traces
@pytest.mark.parametrize("name", real_files() or ["cnn-v100-ns.json.gz"])
def test_real_files_and_their_damage(name: str, tmp_path: Path, real_traces: RealTraces) -> None:
    content = real_traces.path(name).read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = zlib.decompressobj(31).decompress(content)  # one of them is cut
    once = at_once(content)
    found = in_parts(tmp_path / "trace.json", content, max(500, len(content) // 9))
    counts = once.counts()
    if found is None:
        assert counts["broken"] or not counts["closed"] or len(content) < 2000
    else:
        assert everything(found) == everything(once)


keys = st.sampled_from(["a", "b", "stream", "Input Dims", "x" * 20])
values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-5, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.just(', {"ph": "X"}'),
    st.lists(st.just({"ph": "X", "ts": 1}), max_size=3),
    st.booleans(),
)
events = st.fixed_dictionaries(
    {"ph": st.sampled_from("XMi")},
    optional={
        "cat": st.sampled_from(["kernel", "cpu_op", "", "ü"]),
        "name": st.sampled_from(["aten::mm", "gemm", "", '"quoted"']),
        "pid": st.one_of(st.integers(0, 3), st.sampled_from(["Spans", "é"])),
        "tid": st.one_of(st.integers(0, 3), st.just("PyTorch Profiler")),
        "ts": st.integers(0, 10**16),
        "dur": st.integers(0, 10**12),
        "args": st.dictionaries(keys, values, max_size=4),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(events, min_size=1, max_size=30),
    st.sampled_from(["list", "object", "other list first", "other list last"]),
    st.integers(20, 400),
    st.sampled_from([None, 1]),
    st.integers(2, 5),
)
def test_any_events_in_any_parts_on_any_cores(
    tmp_path_factory: pytest.TempPathFactory,
    made: list[Any],
    form: str,
    part_bytes: int,
    indent: int | None,
    cores: int,
) -> None:
    others = [{"ph": "X", "name": "none of the events"}] * 8
    document: Any = made
    if form != "list":
        document = {"schemaVersion": 1, "traceEvents": made, "displayTimeUnit": "ms"}
    if form == "other list first":
        document = {"others": others, **document}
    if form == "other list last":
        document = {**document, "others": others}
    content = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    found = in_parts(tmp_path_factory.getbasetemp() / "any.json", content, part_bytes, cores=cores)
    if found is not None:
        assert everything(found) == everything(at_once(content))


def simple(count: int) -> bytes:
    made = [{"ph": "X", "cat": "cpu_op", "name": f"op{i}", "pid": 1, "tid": 1, "ts": i, "dur": 1} for i in range(count)]
    return json.dumps({"schemaVersion": 1, "traceEvents": made, "displayTimeUnit": "ms"}).encode()


def test_a_sound_file_is_scanned_in_parts(tmp_path: Path) -> None:
    content = simple(500)
    for part_bytes in (100, 1000, len(content) // 2):
        found = in_parts(tmp_path / "trace.json", content, part_bytes)
        assert found is not None
        assert everything(found) == everything(at_once(content))


def document(made: list[Any]) -> bytes:
    return json.dumps({"traceEvents": made}, ensure_ascii=False).encode()


def test_parts_whose_texts_are_too_long_to_be_kept(tmp_path: Path) -> None:
    # each part has a megabyte of texts: of them some of parts before, some new, some of the thread's
    made = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"{i * 5 % 17}" + "n" * 120_000,
            "pid": f"process {i % 3}",
            "tid": i % 2,
            "ts": i,
            "args": {"a": f"{i * 3 % 11}" + "t" * 120_000, "Input Dims": [[i % 5, 2], []]},
        }
        for i in range(60)
    ]
    content = document(made)
    found = in_parts(tmp_path / "trace.json", content, 1_300_000)
    assert found is not None
    assert everything(found) == everything(at_once(content))


@given(st.lists(st.integers(-(2**63), 2**63 - 1).map(lambda value: value >> (value & 56)), min_size=60, max_size=60))
@settings(max_examples=60, deadline=None)
def test_columns_are_as_narrow_as_if_read_at_once(tmp_path_factory: pytest.TempPathFactory, numbers: list[int]) -> None:
    made = [
        {
            "ph": "X",
            "name": str(value % 300),
            "tid": value % 200,
            "ts": i,
            "dur": abs(value) >> 12,
            "args": {"a": value, "b": [value % 9]},
        }
        for i, value in enumerate(sorted(numbers, key=abs))
    ]
    for listed in (made, made[::-1]):
        content = document(listed)
        found = in_parts(tmp_path_factory.getbasetemp() / "widths.json", content, 600)
        assert found is not None
        assert everything(found) == everything(at_once(content))


def test_many_categories_that_come_again(tmp_path: Path) -> None:
    content = document([{"ph": "X", "cat": f"c{i % 500}", "args": {f"a{i % 7}": i}} for i in range(6000)])
    found = in_parts(tmp_path / "trace.json", content, len(content) // 9)
    assert found is not None
    assert everything(found) == everything(at_once(content))


def test_more_categories_than_are_kept_are_left_to_one_scanner(tmp_path: Path) -> None:
    content = document([{"ph": "X", "cat": f"c{i}"} for i in range(1100)])
    assert in_parts(tmp_path / "trace.json", content, len(content) // 9) is None


def test_a_part_is_of_one_whole_and_keeps_it() -> None:
    part = new(1)
    for _ in range(2):
        whole = new()
        whole.feed(b'{"traceEvents": [{"ph": "X", "name": "a"}')
        part.feed(b', {"ph": "X", "name": "b"}')
        taken = whole.take_over(part)
        assert taken == (whole.names() == ["", "a", "b"])
    assert not taken  # by another whole, though the first is held by nothing but the part
    assert not whole.take_over(whole)


@pytest.mark.parametrize("damage", ["cut", "unsound event", "not a trace", "limit"])
def test_what_is_unsound_is_left_to_one_scanner(tmp_path: Path, damage: str) -> None:
    content = simple(500)
    new_scanner: Any = new
    if damage == "cut":
        content = content[: len(content) * 3 // 4]
    if damage == "unsound event":
        content = content.replace(b'"name": "op400"', b'"name" "op400"')
    if damage == "not a trace":
        content = content.replace(b"traceEvents", b"tracedEvents")
    if damage == "limit":
        new_scanner = functools.partial(Scanner, KEPT_METADATA, 450, 16 << 20)
    assert in_parts(tmp_path / "trace.json", content, 1000, new_scanner) is None


def test_files_are_read_in_parts_with_the_same_progress_and_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "scanned_in_parts", functools.partial(scanned_in_parts, part_bytes=1000, cores=2))
    joined: list[int] = []
    take_over = parts._joined

    def noted(*arguments: Any) -> Scanner | None:
        joined.append(1)
        return take_over(*arguments)

    monkeypatch.setattr(parts, "_joined", noted)
    path = tmp_path / "trace.json"
    path.write_bytes(simple(500))
    seen: list[tuple[int, int | None]] = []
    found = scan_file(path, progress=lambda done, size: seen.append((done, size)))
    assert found.scanner.counts()["events"] == 500
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert len(joined) > 10

    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    cut = scan_file(path)
    assert cut.truncated
    assert cut.warnings == (
        f"the file ends in the middle: everything before the break is kept ({cut.scanner.counts()['events']:,} events)",
    )
    assert 350 < cut.scanner.counts()["events"] < 400


def test_a_disk_that_fails_in_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Scanner:
        raise OSError(5, "Input/output error")

    content = simple(500)
    whole_part = parts._part
    monkeypatch.setattr(
        parts, "_part", lambda file, begin, *rest: (failing if begin else whole_part)(file, begin, *rest)
    )
    with pytest.raises(OSError, match="Input/output error"):
        in_parts(tmp_path / "trace.json", content, 1000)
