"""The cache: a hit equals a miss; what does not fit is ignored; a cache that fails costs a sentence."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from polars.testing import assert_frame_equal

from whystall.testing import trace
from whystall.trace import cache as cache_module
from whystall.trace.cache import TraceCache, default_folder
from whystall.trace.load import load_trace
from whystall.trace.model import TABLES, Trace
from whystall.trace.readers.registry import READERS

KINETO = next(reader for reader in READERS if reader.name == "kineto")


def rich(name: str = "gemm") -> Any:
    arguments: dict[str, Any] = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": 8,
        "mine": "x\u00e9",
    }
    return (
        trace(deviceProperties=[{"id": 0, "name": "Device"}], distributedInfo={"rank": 3, "world_size": 4})
        .step(1, at=0, lasts=5_000)
        .python("nn.Module: Net_0", at=0, lasts=900)
        .operator("aten::mm", at=10, lasts=100)
        .launch(name, at=20, runs_at=500, lasts=100)
        .launch("ncclAllReduce", at=200, runs_at=700, lasts=100, **arguments)
        .memory(at=5, size=1, allocated=2, reserved=3)
        .kernel("lost", at=900, lasts=-5)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written: Path = rich().write(tmp_path / "trace.json")
    return written


@pytest.fixture
def cache(tmp_path: Path) -> TraceCache:
    return TraceCache(tmp_path / "cache", least_raw_bytes=0)


def read(path: Path) -> Trace:
    return load_trace(path, cache=False)


def stored(cache: TraceCache, path: Path) -> str:
    key = cache.key(path, KINETO)
    assert key is not None
    assert cache.write(key, read(path)) is None
    return key


def assert_same(found: Trace | None, wanted: Trace) -> None:
    assert found is not None
    for table in TABLES:
        assert_frame_equal(getattr(found, table), getattr(wanted, table), categorical_as_str=True)
        assert getattr(found, table).schema == getattr(wanted, table).schema
    assert np.array_equal(found.host_order, wanted.host_order)
    assert (found.source, found.metadata, found.steps_from) == (wanted.source, wanted.metadata, wanted.steps_from)


def test_a_hit_equals_a_miss(cache: TraceCache, path: Path) -> None:
    assert_same(cache.read(stored(cache, path), path.name), read(path))


def test_a_hit_has_the_name_of_the_file_at_hand(cache: TraceCache, path: Path) -> None:
    found = cache.read(stored(cache, path), "copy.json")
    assert found is not None
    assert found.name == "copy.json"


def test_the_key_is_the_content(cache: TraceCache, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    shutil.copy(path, copy)
    assert cache.key(copy, KINETO) == cache.key(path, KINETO)
    copy.write_bytes(path.read_bytes() + b" ")
    assert cache.key(copy, KINETO) != cache.key(path, KINETO)
    assert cache.key(tmp_path / "nothing", KINETO) is None
    assert cache.read(None, "x") is None
    assert cache.read("0" * 40, "x") is None


def test_small_traces_are_not_worth_it(tmp_path: Path, path: Path) -> None:
    cache = TraceCache(tmp_path / "cache")
    assert cache.write(cache.key(path, KINETO), read(path)) is None
    assert not (tmp_path / "cache").exists()


def test_another_version_is_ignored(cache: TraceCache, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = stored(cache, path)
    monkeypatch.setattr(cache_module, "SCHEMA_VERSION", cache_module.SCHEMA_VERSION + 1)
    assert cache.read(key, path.name) is None
    stored(cache, path)
    assert_same(cache.read(key, path.name), read(path))


def test_no_damage_goes_unnoticed(cache: TraceCache, path: Path) -> None:
    key = stored(cache, path)
    files = sorted((cache.folder / key).iterdir())
    assert len(files) == len(TABLES) + 2
    for file in files:
        healthy = file.read_bytes()
        for at in {0, 1, len(healthy) // 3, len(healthy) // 2, len(healthy) - 1}:
            file.write_bytes(healthy[:at] + bytes([healthy[at] ^ 0x11]) + healthy[at + 1 :])
            assert cache.read(key, path.name) is None, (file.name, at)
        file.write_bytes(healthy[:-1])
        assert cache.read(key, path.name) is None
        file.write_bytes(b"")
        assert cache.read(key, path.name) is None
        file.unlink()
        assert cache.read(key, path.name) is None
        file.write_bytes(healthy)
    assert_same(cache.read(key, path.name), read(path))


def test_an_entry_of_another_shape_is_ignored(cache: TraceCache, path: Path) -> None:
    key = stored(cache, path)
    text = (cache.folder / key / "trace.json").read_bytes()
    entry = msgspec.json.decode(text[: -cache_module._DIGEST_BYTES])
    changes: list[dict[str, Any]] = [{"source": 5}, {"columns": {}}, {"checksums": {}}]
    for change in changes:
        body = msgspec.json.encode({**entry, **change})
        (cache.folder / key / "trace.json").write_bytes(body + cache_module._digest(body))
        assert cache.read(key, path.name) is None


def test_an_entry_that_others_could_have_written_is_ignored(
    cache: TraceCache, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = stored(cache, path)
    entry = cache.folder / key
    assert stat.S_IMODE(entry.stat().st_mode) == 0o700
    for mode in (0o770, 0o707, 0o777):
        entry.chmod(mode)
        assert cache.read(key, path.name) is None
    entry.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: entry.stat().st_uid + 1)
    assert cache.read(key, path.name) is None


def test_an_entry_under_another_name_is_ignored(cache: TraceCache, path: Path, tmp_path: Path) -> None:
    key = stored(cache, path)
    other = rich("another").write(tmp_path / "other.json")
    theirs = cache.key(other, KINETO)
    assert theirs is not None
    shutil.copytree(cache.folder / key, cache.folder / theirs)
    assert cache.read(theirs, other.name) is None
    assert cache.read(key, path.name) is not None


def test_a_link_to_an_entry_is_ignored_and_replaced(cache: TraceCache, path: Path) -> None:
    key = stored(cache, path)
    (cache.folder / key).rename(cache.folder / "elsewhere")
    (cache.folder / key).symlink_to("elsewhere")
    assert cache.read(key, path.name) is None
    assert stored(cache, path) == key
    assert not (cache.folder / key).is_symlink()
    assert (cache.folder / "elsewhere").is_dir()
    assert cache.read(key, path.name) is not None


def test_a_link_within_an_entry_is_ignored(cache: TraceCache, path: Path, tmp_path: Path) -> None:
    key = stored(cache, path)
    for file in sorted((cache.folder / key).iterdir()):
        file.rename(tmp_path / "moved")
        file.symlink_to(tmp_path / "moved")
        assert cache.read(key, path.name) is None, file.name
        file.unlink()
        (tmp_path / "moved").rename(file)
    assert cache.read(key, path.name) is not None


def test_the_folder_is_the_user_s_alone(cache: TraceCache, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = stored(cache, path)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    cache.folder.chmod(0o770)
    assert cache.read(key, path.name) is None
    assert "others may write to it" in (cache.write(key, read(path)) or "")
    cache.folder.chmod(0o755)
    assert cache.read(key, path.name) is not None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_the_folder_of_another_user_is_left_alone(cache: TraceCache, path: Path) -> None:
    key = stored(cache, path)
    os.chown(cache.folder, 12_345, -1)
    assert cache.read(key, path.name) is None
    assert "another user's" in (cache.write(key, read(path)) or "")
    os.chown(cache.folder, 0, -1)
    (cache.folder / "link").symlink_to(cache.folder)
    os.chown(cache.folder / "link", 12_345, -1, follow_symlinks=False)
    assert TraceCache(cache.folder / "link", least_raw_bytes=0).read(key, path.name) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_in_an_entry_is_ignored(cache: TraceCache, path: Path) -> None:
    key = stored(cache, path)
    for file in (cache.folder / key).iterdir():
        os.chown(file, 12_345, -1)
        assert cache.read(key, path.name) is None
        os.chown(file, 0, -1)


def test_eviction_keeps_the_newest_within_the_bound(tmp_path: Path) -> None:
    paths = [rich(f"kernel{i}").write(tmp_path / f"{i}.json") for i in range(4)]
    folder = tmp_path / "cache"
    unbounded = TraceCache(folder, least_raw_bytes=0)
    keys = [stored(unbounded, path) for path in paths[:3]]
    for age, key in zip((300, 100, 200), keys, strict=True):
        os.utime(folder / key, (0, (folder / key).stat().st_mtime - age))
    size = sum(file.stat().st_size for file in (folder / keys[0]).iterdir())
    bounded = TraceCache(folder, least_raw_bytes=0, largest_bytes=int(size * 2.5))
    newest = stored(bounded, paths[3])
    assert {entry.name for entry in folder.iterdir()} == {newest, keys[1]}


def test_the_newest_stays_even_when_it_is_too_large(tmp_path: Path, path: Path) -> None:
    cache = TraceCache(tmp_path / "cache", least_raw_bytes=0, largest_bytes=1)
    key = stored(cache, path)
    assert cache.read(key, path.name) is not None


def test_reading_makes_an_entry_young(cache: TraceCache, path: Path) -> None:
    key = stored(cache, path)
    os.utime(cache.folder / key, (0, 0))
    cache.read(key, path.name)
    assert (cache.folder / key).stat().st_mtime > 1_000_000_000


def test_what_a_dead_process_left_is_cleared_away(cache: TraceCache, path: Path) -> None:
    old, young = cache.folder / ".writing-old", cache.folder / ".writing-young"
    old.mkdir(parents=True)
    young.mkdir()
    os.utime(old, (0, 0))
    stored(cache, path)
    assert not old.exists()
    assert young.exists()


def test_writers_at_the_same_time_end_in_one_sound_entry(cache: TraceCache, path: Path) -> None:
    wanted, key = read(path), cache.key(path, KINETO)
    problems: list[str | None] = []
    barrier = threading.Barrier(6)

    def write() -> None:
        barrier.wait()
        problems.extend(cache.write(key, wanted) for _ in range(5))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [None] * 30
    assert key is not None
    assert_same(cache.read(key, path.name), wanted)
    assert [entry.name for entry in cache.folder.iterdir()] == [key]


def test_processes_at_the_same_time(tmp_path: Path, path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from whystall.trace.cache import TraceCache;"
        "from whystall.trace.load import load_trace; from whystall.trace.readers.registry import READERS;"
        "cache = TraceCache(Path(sys.argv[2]), least_raw_bytes=0); path = Path(sys.argv[1]);"
        " key = cache.key(path, READERS[0]);"
        "trace = load_trace(path, cache=False);"
        "print([cache.write(key, trace) for _ in range(10)], cache.read(key, 'x') is not None)"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].split("]")[0] for process in running] == [f"[{', '.join(['None'] * 10)}"] * 2


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_costs_a_sentence(cache: TraceCache, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_write_entry", no_space)
    monkeypatch.setattr("whystall.trace.load._LEAST_FILE_BYTES", 0)
    loaded = load_trace(path, store=cache)
    (warning,) = loaded.source.warnings
    assert (
        warning
        == f"the trace could not be cached in {cache.folder} (No space left on device); the result is not affected"
    )
    assert_frame_equal(loaded.device_events, read(path).device_events, categorical_as_str=True)
    assert list(cache.folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_costs_a_sentence(tmp_path: Path, path: Path) -> None:
    (tmp_path / "file").write_text("")
    problem = TraceCache(tmp_path / "file" / "cache", least_raw_bytes=0).write("0" * 40, read(path))
    assert problem is not None
    assert problem.endswith("(Not a directory); the result is not affected")


def test_loading_twice_reads_once(cache: TraceCache, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.trace.load._LEAST_FILE_BYTES", 0)
    first = load_trace(path, store=cache)
    monkeypatch.setattr("whystall.trace.load._read", no_space)
    assert_same(load_trace(path, store=cache), first)


def test_without_the_cache_nothing_is_written(cache: TraceCache, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.trace.load._LEAST_FILE_BYTES", 0)
    load_trace(path, cache=False, store=cache)
    assert not cache.folder.exists()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_folder() == Path(os.environ["WHYSTALL_CACHE_DIR"])
    monkeypatch.delenv("WHYSTALL_CACHE_DIR")
    assert default_folder() == Path("/xdg/whystall")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "whystall"
