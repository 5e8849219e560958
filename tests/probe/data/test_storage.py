"""Fetching with and without the page cache: real files, what Linux counts as read made up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from whystall.probe.data import storage
from whystall.probe.data.storage import bytes_from_storage, data_files, drop_pages, opened_files, probe_storage

KIB = 1 << 10


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[Path, int]]:
    found = []
    for number in range(3):
        path = tmp_path / f"sample{number}.bin"
        path.write_bytes(os.urandom(64 * KIB))
        with path.open("rb") as written:
            os.fsync(written.fileno())  # what is not written yet stays in the page cache
        found.append((path, 64 * KIB))
    return found


class Disk:
    """A page cache and a clock by which reading a file takes 1 ms, and 10 ms where its pages were dropped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: list[tuple[Path, int]], *, keeps: bool = False) -> None:
        self.files, self.keeps = files, keeps
        self.now_s, self.read = 0.0, 0
        self.cached = dict(files)
        self.dropped: list[int] = []
        monkeypatch.setattr(storage, "bytes_from_storage", lambda: self.read)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(storage, "drop_pages", self.drop)

    def drop(self, files: list[tuple[Path, int]]) -> None:
        self.dropped.append(len(files))
        if not self.keeps:
            self.cached = {}

    def fetch(self) -> None:
        for path, size in self.files:
            assert len(path.read_bytes()) == size
            self.now_s += 0.001
            if path not in self.cached:
                self.now_s += 0.009
                self.read += size
                self.cached[path] = size


def test_a_batch_is_timed_with_its_pages_and_without(
    monkeypatch: pytest.MonkeyPatch, files: list[tuple[Path, int]]
) -> None:
    disk = Disk(monkeypatch, files)

    found, because = probe_storage(disk.fetch, files)

    assert because is None
    assert found is not None
    assert (found.files, found.file_bytes) == (3, 3 * 64 * KIB)
    assert found.cached_ns == pytest.approx(3e6)
    assert found.uncached_ns == pytest.approx(30e6)
    assert set(disk.dropped) == {3}, "before each batch all of the files"


def test_what_is_quicker_without_the_cache_is_noise(
    monkeypatch: pytest.MonkeyPatch, files: list[tuple[Path, int]]
) -> None:
    disk = Disk(monkeypatch, files)
    slow = iter([0.05] * 8 + [0.0] * 8)

    def fetch() -> None:
        disk.fetch()
        disk.now_s += next(slow)

    found, _ = probe_storage(fetch, files)
    assert found is not None
    assert found.uncached_ns == found.cached_ns == pytest.approx(53e6)


def test_pages_that_stay_say_nothing(monkeypatch: pytest.MonkeyPatch, files: list[tuple[Path, int]]) -> None:
    found, because = probe_storage(Disk(monkeypatch, files, keeps=True).fetch, files)
    assert found is None
    assert str(because).startswith("nothing was read from storage after its pages were dropped")


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (lambda m: m.setattr(storage, "bytes_from_storage", lambda: None), "this system does not let pages"),
        (lambda m: m.delattr(os, "posix_fadvise"), "this system does not let pages"),
        (lambda m: m.setattr(storage, "_MOST_BYTES", 100 * KIB), "the files hold 0 GiB, more than is dropped"),
    ],
)
def test_why_it_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
    files: list[tuple[Path, int]],
    change: Callable[[pytest.MonkeyPatch], None],
    because: str,
) -> None:
    monkeypatch.setattr(storage, "bytes_from_storage", lambda: 0)
    change(monkeypatch)
    found, said = probe_storage(lambda: pytest.fail("nothing is fetched in vain"), files)
    assert found is None
    assert str(said).startswith(because)


def test_a_data_set_without_files_is_said() -> None:
    assert probe_storage(lambda: None, []) == (None, "the data set opened no file")


@pytest.fixture
def heard(files: list[tuple[Path, int]]) -> set[str]:
    paths: set[str] = set()
    with opened_files(paths):
        files[0][0].read_bytes()
        (files[0][0].parent / "made.bin").write_bytes(b"x")
        with files[1][0].open("r+b") as changed:
            changed.write(b"x")
    files[2][0].read_bytes()
    return paths


def test_files_that_are_read_meanwhile_are_heard_of(heard: set[str], files: list[tuple[Path, int]]) -> None:
    ours = {path for path in heard if path.startswith(str(files[0][0].parent))}
    assert ours == {str(files[0][0])}, "not what was written, nor what was read afterwards"


def test_data_is_what_has_bytes_and_is_no_code(tmp_path: Path, files: list[tuple[Path, int]]) -> None:
    for name in ("empty.bin", "module.py", "library.so"):
        (tmp_path / name).write_bytes(b"" if name == "empty.bin" else b"x")
    (tmp_path / "again.bin").symlink_to(files[0][0])
    named = [
        str(path) for path in (*tmp_path.iterdir(), tmp_path / "gone.bin", Path("/proc/self/stat"), Path(os.__file__))
    ]
    with files[2][0].open("rb"):
        found = data_files([name for name in named if "sample2" not in name])
    assert [one for one in found if one[0].parent == tmp_path] == files
    assert not [path for path, _ in found if str(path).startswith(("/proc/", str(Path(os.__file__).parent)))]


def test_dropping_pages_changes_no_file_and_passes_over_those_that_are_gone(files: list[tuple[Path, int]]) -> None:
    before = [path.read_bytes() for path, _ in files]
    drop_pages([*files, (files[0][0].parent / "gone.bin", 1)])
    assert [path.read_bytes() for path, _ in files] == before


def test_what_linux_counts_never_falls() -> None:
    first = bytes_from_storage()
    if first is None:
        pytest.skip("this system does not count what a process has read")
    assert (bytes_from_storage() or 0) >= first >= 0
