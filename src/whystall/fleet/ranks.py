"""Turns the user's inputs into ranks to diagnose: a few ranks are read together; of many, a few in depth."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.exchanges import exchanges
from whystall.analysis.shared_steps import marked_unshared
from whystall.analysis.trace_analysis import TraceAnalysis, analyze_trace
from whystall.errors import InputError
from whystall.fleet.choosing import Chosen
from whystall.fleet.engines import Engine
from whystall.fleet.inputs import RecordedFile, are_many, find_files
from whystall.fleet.many import summarise_all
from whystall.fleet.remote import fetched, is_address
from whystall.fleet.spans import spans
from whystall.fleet.summarise import Manner
from whystall.fleet.summary import Candidate
from whystall.trace.cache import default_folder
from whystall.trace.discovery import PathLike, folders_among
from whystall.trace.files import Progress
from whystall.trace.manifest import Manifest, place_of
from whystall.trace.model import Trace
from whystall.trace.recordings import (
    Sources,
    each_source,
    nothing_to_analyze,
    read_all_samples,
    read_recordings,
)
from whystall.trace.samples import RunSamples

_SEVERAL: Final = {"stands": "stand", "comes": "come", "waits": "wait", "computes": "compute", "belongs": "belong"}


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The diagnosed traces with their analyses, by rank, and the ``others`` with summaries."""

    traces: list[Trace]
    analyses: list[TraceAnalysis]
    others: list[Candidate]
    samples: list[RunSamples]
    folders: list[Path]
    failures: list[str]
    notes: list[str]
    attended: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    """The collectives of the diagnosed ranks for `whystall.diagnosis.summarised.Summarised`."""


def read_ranks(
    sources: Sources,
    manner: Manner,
    engine: Engine,
    *,
    cache: bool = True,
    by_engine: bool = False,
    progress: Progress | None = None,
) -> Ranks:
    """The ranks of the sources.

    At most `FEW_RANKS` that fit in memory are read together, unless ``by_engine`` is set; of more each is summarised by
    the engine. Raises `InputError` where nothing can be read.
    """
    given = each_source(sources)
    failures: list[str] = []
    files = find_files(given, failures)
    loaded = any(isinstance(one, Trace) for one in given)
    if files and not loaded and (by_engine or are_many(files)):
        return _summarised(given, files, failures, manner, engine, cache=cache, progress=progress)
    return _together(given, files, failures, manner, cache=cache, progress=progress)


def _together(
    given: Sequence[PathLike | Trace],
    files: Sequence[RecordedFile],
    failures: list[str],
    manner: Manner,
    *,
    cache: bool,
    progress: Progress | None,
) -> Ranks:
    """All traces at once, each in full; a remote file is fetched for as long as it takes to read it."""
    remote = [file for file in files if file.is_remote]
    stated = {place_of(Path(file.address)): file.stated for file in files if file.stated and not file.is_remote}
    with contextlib.ExitStack() as copies:
        local = [one for one in given if not is_address(one)]
        for file in remote:
            try:
                copy = copies.enter_context(fetched(file.address))
            except InputError as error:
                failures.append(str(error))
                continue
            local.append(copy)
            if file.stated is not None:
                stated[place_of(copy)] = file.stated
        if not local and len(given):
            raise nothing_to_analyze(failures)
        found = read_recordings(
            local,
            cache=cache and not remote,
            limits=manner.limits,
            progress=progress,
            manifest=Manifest(stated),
        )
    told = [one for one in failures if one not in found.failures]
    return Ranks(
        found.traces,
        _analyses(found.traces, found.ranks, manner),
        [],
        found.samples,
        found.folders,
        [*told, *found.failures],
        found.notes,
    )


def _summarised(
    given: Sequence[PathLike | Trace],
    files: Sequence[RecordedFile],
    failures: list[str],
    manner: Manner,
    engine: Engine,
    *,
    cache: bool,
    progress: Progress | None,
) -> Ranks:
    """Each file summarised by itself, then the ranks with most evidence read in full."""
    folders = folders_among(given)
    samples = read_all_samples(folders, failures)
    fleet = summarise_all(
        files,
        manner,
        engine,
        cache=default_folder() if cache else None,
        windows=not samples,
        progress=progress,
    )
    failures += fleet.failures
    if not fleet.candidates and not samples:
        raise nothing_to_analyze(failures)
    chosen = fleet.chosen()
    traces, ranks, gone = fleet.in_depth([one.rank for one in chosen], manner, cache=cache)
    failures += gone
    others = [one for one in fleet.candidates if one.rank not in ranks]
    return Ranks(
        traces,
        _analyses(traces, ranks, manner),
        others,
        samples,
        folders,
        failures,
        [*([looked_at(chosen, len(fleet.candidates))] if others else []), *fleet.notes],
        fleet.gatherings.attended(ranks) if others else {},
    )


def _analyses(traces: Sequence[Trace], ranks: Sequence[int], manner: Manner) -> list[TraceAnalysis]:
    classes = (*manner.classes(), *exchanges(traces))
    found = [
        analyze_trace(trace, rank=rank, classes=classes, calibrations=manner.calibrations)
        for trace, rank in zip(traces, ranks, strict=True)
    ]
    return marked_unshared(traces, found)


def looked_at(chosen: Sequence[Chosen], ranks: int) -> str:
    """The sentence on which ranks were looked at in depth, and why."""
    reasons: dict[str, list[int]] = {}
    for one in chosen:
        reasons.setdefault(one.why, []).append(one.rank)
    several = {why: _of_several(why) if len(own) > 1 else why for why, own in reasons.items()}
    told = "; ".join(
        f"{'ranks' if len(own) > 1 else 'rank'} {spans(own)} {several[why]}" for why, own in reasons.items()
    )
    return (
        f"of {ranks:,} ranks, each summarised by itself, {len(chosen)} were looked at in depth together, and what is "
        f"found is found on these: {told}"
    )


def _of_several(why: str) -> str:
    """The reason in the plural, for several ranks.

    >>> _of_several("comes last to 2 of 10 collectives")
    'come last to 2 of 10 collectives'
    """
    verb, _, rest = why.partition(" ")
    return f"{_SEVERAL.get(verb, verb)} {rest}"
