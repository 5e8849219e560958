"""Reads everything that was recorded of a job: the traces of its ranks and the samples of its run folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whystall.errors import UsageError
from whystall.run_folder.layout import SAMPLES_SUFFIX
from whystall.trace.discovery import PathLike, find_traces, folders_among
from whystall.trace.errors import InputError
from whystall.trace.files import Limits, Progress
from whystall.trace.load import load_traces
from whystall.trace.model import TABLES, Trace
from whystall.trace.ranks import one_per_rank
from whystall.trace.readers.reader import Reader
from whystall.trace.readers.registry import installed_readers
from whystall.trace.samples import RunSamples, read_samples

Sources = PathLike | Trace | Iterable[PathLike | Trace]

_RECORDED_TABLES: Final = tuple(
    table for table in TABLES if table not in {"threads", "other_events", "extra_arguments"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Recordings:
    """A trace for each rank, the samples, and in plain sentences what could not be read and what was left out."""

    traces: list[Trace]
    ranks: list[int]
    samples: list[RunSamples]
    folders: list[Path]
    """The folders that were named: a watched run has more to say than its traces."""
    failures: list[str]
    notes: list[str]


def read_recordings(
    sources: Sources, *, cache: bool = True, limits: Limits | None = None, progress: Progress | None = None
) -> Recordings:
    """What the sources hold. A file that cannot be read is named; when nothing is left, `InputError` is raised."""
    given = [sources] if isinstance(sources, str | Path | Trace) else list(sources)
    folders = folders_among(given)
    readers, failures = installed_readers()
    traces = _load(given, readers, failures, cache=cache, limits=limits, progress=progress)
    samples = _samples(folders, failures)
    if not traces and not samples:
        raise _nothing(failures)
    kept, ranks, notes = one_per_rank(traces)
    return Recordings(kept, ranks, samples, folders, failures, notes)


def _load(
    given: Sequence[PathLike | Trace],
    readers: Sequence[Reader],
    failures: list[str],
    *,
    cache: bool,
    limits: Limits | None,
    progress: Progress | None,
) -> list[Trace]:
    """The traces that hold anything."""
    found: list[Trace] = []
    for source in given:
        if isinstance(source, Trace):
            found.append(source)
            continue
        for path in _paths(source, readers, failures):
            try:
                found += load_traces(path, cache=cache, readers=readers, limits=limits, progress=progress)
            except InputError as error:
                failures.append(str(error))
    failures += [
        f"{trace.name}: nothing was recorded, the trace holds no event of a job"
        for trace in found
        if not _recorded(trace)
    ]
    return [trace for trace in found if _recorded(trace)]


def _paths(source: PathLike, readers: Sequence[Reader], failures: list[str]) -> list[Path]:
    """The files to read; a folder with samples alone has none, and that is no failure."""
    try:
        return find_traces(source, readers)
    except InputError as error:
        if not any(_samples_in(folder) for folder in folders_among([source])):
            failures.append(str(error))
        return []


def _recorded(trace: Trace) -> bool:
    """Whether a trace holds more than the profiler's own marks: events, if only some that had to be set aside."""
    return bool(trace.source.quarantined) or any(len(getattr(trace, table)) for table in _RECORDED_TABLES)


def _samples(folders: Sequence[Path], failures: list[str]) -> list[RunSamples]:
    found = []
    for path in sorted(path for folder in folders for path in _samples_in(folder)):
        try:
            found.append(read_samples(path))
        except InputError as error:
            failures.append(str(error))
    return found


def _samples_in(folder: Path) -> list[Path]:
    return list(folder.glob(f"*{SAMPLES_SUFFIX}"))


def _nothing(failures: list[str]) -> UsageError | InputError:
    """Why there is nothing to analyse."""
    if not failures:
        return UsageError("nothing to analyze was given: name a trace, a folder or a glob pattern")
    return InputError(failures[0] if len(failures) == 1 else f"no trace could be read: {'; '.join(failures)}")
