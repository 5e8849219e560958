"""The recording of one rank of a report, found again by its name in the report."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from whystall.errors import InputError
from whystall.fleet.engines import engine_named
from whystall.fleet.inputs import RecordedFile, find_files
from whystall.fleet.many import Fleet, summarise_all
from whystall.fleet.remote import fetched
from whystall.fleet.summarise import Manner
from whystall.report.schema import Report
from whystall.trace.cache import default_folder
from whystall.trace.files import Limits
from whystall.trace.load import load_traces
from whystall.trace.manifest import as_stated
from whystall.trace.model import Trace
from whystall.trace.ranks import facts_of
from whystall.trace.windows import JOINED

_STORED = ".json"


class Recorded:
    """The recordings of a report on ``paths``; the latest one used is kept."""

    def __init__(
        self, paths: Sequence[str], report: Report, *, cache: bool = True, limits: Limits | None = None
    ) -> None:
        self._paths = [_folder_of(path, report) for path in paths]
        self._report = report
        self._cache = cache
        self._limits = limits
        self._last: tuple[int, Trace] | None = None
        self._fleet: Fleet | None = None

    def trace_of(self, rank: int) -> Trace:
        """The recording of a rank. Raises `InputError` where it is not there any more."""
        if self._last is None or self._last[0] != rank:
            self._last = None  # before the next one is read: only one of two large ones is in memory
            self._last = (rank, self._load(rank))
        return self._last[1]

    def _load(self, rank: int) -> Trace:
        failures: list[str] = []
        names = {file.path for file in self._report.source.files if file.rank == rank}
        files = find_files(self._paths, failures)
        if any(JOINED in file.path for file in self._report.source.files):  # then ranks of one window moved as well
            return self._joined(rank, files)
        found: list[Trace] = []
        for file in [file for file in files if file.name in names]:
            try:
                found += self._traces(file)
            except InputError as error:
                failures.append(str(error))
        same = [trace for trace in found if facts_of(trace, alone=True).rank == rank]
        if not found:
            raise _gone(rank, failures)
        return (same or found)[0]

    def _joined(self, rank: int, files: Sequence[RecordedFile]) -> Trace:
        """The windows of a rank as one: all ranks together determine which these are, and their shifts."""
        manner, cache = Manner(limits=self._limits), default_folder() if self._cache else None
        if self._fleet is None:
            self._fleet = summarise_all(files, manner, engine_named(None), cache=cache)
        traces, _, gone = self._fleet.in_depth([rank], manner, cache=self._cache)
        if not traces:
            failures, self._fleet = self._fleet.failures, None
            raise _gone(rank, [*failures, *gone])
        return traces[0]

    def _traces(self, file: RecordedFile) -> list[Trace]:
        with contextlib.ExitStack() as copies:
            path = copies.enter_context(fetched(file.address)) if file.is_remote else file.address
            found = load_traces(Path(path), cache=self._cache and not file.is_remote, limits=self._limits)
            return as_stated(found, file.stated, [])


def _gone(rank: int, failures: Sequence[str]) -> InputError:
    return InputError(f"no recording of rank {rank} is there: {'; '.join(failures) or 'its file is gone'}")


def _folder_of(path: str, report: Report) -> str:
    """The path; of a stored report its folder, which holds the traces."""
    recorded = {file.path for file in report.source.files}
    file = Path(path)
    stored = file.suffix == _STORED and file.is_file() and file.name not in recorded
    return str(file.parent) if stored else path
