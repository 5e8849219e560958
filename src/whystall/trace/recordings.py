"""Reads everything that was recorded of a job: the traces of its ranks and the samples of its run folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whystall.errors import UsageError
from whystall.run_folder.layout import SAMPLES_SUFFIX, journals
from whystall.trace.discovery import RANKS_JSON, PathLike, find_traces, folders_among
from whystall.trace.errors import InputError
from whystall.trace.files import Limits, Progress
from whystall.trace.load import load_traces
from whystall.trace.manifest import Manifest, as_stated, place_of, read_manifest
from whystall.trace.model import TABLES, Trace
from whystall.trace.ranks import facts_of, of_each_rank
from whystall.trace.readers.reader import Reader
from whystall.trace.readers.registry import installed_readers
from whystall.trace.samples import RunSamples, read_samples
from whystall.trace.together import each_once, whole_of
from whystall.trace.windows import as_one, moved_by

Sources = PathLike | Trace | Iterable[PathLike | Trace]

_MOST_TOLD: Final = 16
_RECORDED_TABLES: Final = tuple(
    table for table in TABLES if table not in {"threads", "counters", "other_events", "extra_arguments"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Recordings:
    """A trace for each rank, the samples, and plain sentences on unreadable and left out recordings."""

    traces: list[Trace]
    ranks: list[int]
    samples: list[RunSamples]
    folders: list[Path]
    """The named folders: a watched run holds more than its traces."""
    failures: list[str]
    notes: list[str]


def read_recordings(
    sources: Sources,
    *,
    cache: bool = True,
    limits: Limits | None = None,
    progress: Progress | None = None,
    manifest: Manifest | None = None,
    readers: Sequence[Reader] | None = None,
) -> Recordings:
    """The recordings of the sources. Names each file that cannot be read; raises `InputError` when nothing is left.

    A watched job without a step has its times alone.

    ``manifest`` gives the ranks where the caller has read it already; else the lists of ranks among the sources do.
    ``readers`` are whystall's and those of installed packages unless others are given.
    """
    given = each_source(sources)
    folders = folders_among(given)
    used, failures = installed_readers() if readers is None else (readers, [])
    known = read_manifest(given) if manifest is None else manifest
    read: set[str] = set()
    traces = _load(given, used, failures, known, read, cache=cache, limits=limits, progress=progress)
    failures += known.missing(read) if manifest is None else []
    samples = read_all_samples(folders, failures)
    if not traces and not samples and not any(map(journals, folders)):
        raise nothing_to_analyze(failures)
    facts = [facts_of(trace, alone=len(traces) == 1) for trace in traces]
    # A watched run's samples cover all its steps; its windows were recorded for one reason each.
    places, ranks, notes = of_each_rank(facts, windows=not samples)
    moved = moved_by([[facts[place] for place in own] for own in places])
    whole = [as_one([traces[place] for place in own], by) for own, by in zip(places, moved, strict=True)]
    return Recordings(whole, ranks, samples, folders, failures, notes)


def each_source(sources: Sources) -> list[PathLike | Trace]:
    """The sources as a list, one alone included."""
    return [sources] if isinstance(sources, str | Path | Trace) else list(sources)


def _load(
    given: Sequence[PathLike | Trace],
    readers: Sequence[Reader],
    failures: list[str],
    manifest: Manifest,
    read: set[str],
    *,
    cache: bool,
    limits: Limits | None,
    progress: Progress | None,
) -> list[Trace]:
    """The traces that hold anything; ``read`` gets the places of their files."""
    found: list[Trace] = []
    told: set[Path] = set()
    for source in given:
        if isinstance(source, Trace):
            found += holding([source], failures)
            continue
        for path in each_once(trace_files(source, readers, failures), readers, told):
            places = [place_of(one) for one in whole_of(path, readers).files]
            read.update(places)
            try:
                traces = load_traces(path, cache=cache, readers=readers, limits=limits, progress=progress)
                found += as_stated(holding(traces, failures), manifest.of(places), failures)
            except InputError as error:
                failures.append(str(error))
    return found


def trace_files(source: PathLike, readers: Sequence[Reader], failures: list[str]) -> list[Path]:
    """The files to read; a folder with samples or times alone has none. A list of ranks is no trace."""
    try:
        return [path for path in find_traces(source, readers) if path.name != RANKS_JSON]
    except InputError as error:
        if not any(_samples_in(folder) or journals(folder) for folder in folders_among([source])):
            failures.append(str(error))
        return []


def holding(traces: Sequence[Trace], failures: list[str]) -> list[Trace]:
    """The traces that hold anything; on each of the others a sentence."""
    failures += [
        f"{trace.name}: nothing was recorded, the trace holds no event of a job"
        for trace in traces
        if not holds_work(trace)
    ]
    return [trace for trace in traces if holds_work(trace)]


def holds_work(trace: Trace) -> bool:
    """Whether a trace holds more than the profiler's own marks: events, if only some that had to be set aside."""
    return bool(trace.source.quarantined) or any(len(getattr(trace, table)) for table in _RECORDED_TABLES)


def read_all_samples(folders: Sequence[Path], failures: list[str]) -> list[RunSamples]:
    """The samples in the folders; a file that cannot be read is named in ``failures``."""
    found = []
    for path in sorted(path for folder in folders for path in _samples_in(folder)):
        try:
            found.append(read_samples(path))
        except InputError as error:
            failures.append(str(error))
    return found


def _samples_in(folder: Path) -> list[Path]:
    return list(folder.glob(f"*{SAMPLES_SUFFIX}"))


def nothing_to_analyze(failures: list[str]) -> UsageError | InputError:
    """Why there is nothing to analyse."""
    if not failures:
        return UsageError("nothing to analyze was given: name a trace, a folder or a glob pattern")
    if len(failures) == 1:
        return InputError(failures[0])
    more = f"; and {len(failures) - _MOST_TOLD:,} more" if len(failures) > _MOST_TOLD else ""
    return InputError(f"no trace could be read: {'; '.join(failures[:_MOST_TOLD])}{more}")
