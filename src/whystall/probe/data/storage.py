"""Fetching with and without the page cache: the files that a data set opens, and their pages dropped without root."""

from __future__ import annotations

import contextlib
import os
import stat
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from whystall.probe.data.results import Storage

_BATCHES: Final = 8
_MOST_FILES: Final = 100_000
_MOST_BYTES: Final = 16 << 30  # pages are dropped one file after another: larger files are left alone

_watching: list[set[str]] = []
_hooked: list[bool] = []


@contextlib.contextmanager
def opened_files(into: set[str]) -> Iterator[None]:
    """Notes the paths of files that this process opens meanwhile."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_heard)  # it can never be removed: it checks a list that is usually empty
    _watching.append(into)
    try:
        yield
    finally:
        _watching.remove(into)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watching and isinstance(arguments[0], (str, bytes)) and not _writes(arguments[2]):
        for paths in _watching:
            if len(paths) < _MOST_FILES:
                paths.add(os.fsdecode(arguments[0]))


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _held() -> Iterator[str]:
    """The paths of files that this process has open to read."""
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError, StopIteration, ValueError):
                lines = Path("/proc/self/fdinfo", entry.name).read_text().splitlines()
                flags = int(next(line for line in lines if line.startswith("flags")).split()[1], 8)
                if not _writes(flags):
                    yield str(Path(entry.path).readlink())


def data_files(paths: Iterable[str]) -> list[tuple[Path, int]]:
    """Those of the paths, and of the files that this process holds open, that are data, with their sizes."""
    outside = tuple(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
    found: dict[Path, int] = {}
    for text in (*paths, *_held()):
        path = Path(os.path.realpath(text))
        with contextlib.suppress(OSError, ValueError):
            known = path.stat()
            is_code = path.suffix in (".py", ".pyc", ".so") or str(path).startswith(
                (*outside, "/proc/", "/sys/", "/dev/")
            )
            if stat.S_ISREG(known.st_mode) and known.st_size and not is_code:
                found[path] = known.st_size
    return sorted(found.items())


def drop_pages(files: Iterable[tuple[Path, int]]) -> None:
    """Makes the system forget the pages of files; mapped and dirty ones stay."""
    for path, _ in files:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def bytes_from_storage() -> int | None:
    """Bytes that this process has had read from storage, as Linux counts them; ``None`` elsewhere."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])
    return None


def probe_storage(fetch: Callable[[], object], files: list[tuple[Path, int]]) -> tuple[Storage | None, str | None]:
    """The median time of a batch cached and not, or why it is not known.

    ``fetch`` fetches one batch; the same calls in the same order must fetch the same batches of a fresh iterator.
    """
    if not files:
        return None, "the data set opened no file"
    total = sum(size for _, size in files)
    if not hasattr(os, "posix_fadvise") or bytes_from_storage() is None:
        return None, "this system does not let pages of files be dropped without root"
    if total > _MOST_BYTES:
        return None, f"the files hold {total >> 30} GiB, more than is dropped from the page cache here"
    cached = _median_s(fetch)
    times, read = [], 0
    for _ in range(_BATCHES):
        drop_pages(files)
        before = bytes_from_storage() or 0
        began = time.perf_counter()
        fetch()
        times.append(time.perf_counter() - began)
        read += (bytes_from_storage() or 0) - before
    if not read:
        return (
            None,
            "nothing was read from storage after its pages were dropped (a file system in memory, or a mapped file)",
        )
    uncached = max(statistics.median(times), cached)
    return Storage(
        files=len(files), file_bytes=total, cached_ns=round(cached * 1e9), uncached_ns=round(uncached * 1e9)
    ), None


def _median_s(fetch: Callable[[], object]) -> float:
    times = []
    for _ in range(_BATCHES):
        began = time.perf_counter()
        fetch()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
