"""Many ranks: each summarised by itself, then a few of them looked at together, in depth."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from whystall.errors import InputError
from whystall.fleet.choosing import MOST_CHOSEN, Chosen, chosen_ranks
from whystall.fleet.engines import Engine, Work
from whystall.fleet.engines.machine import free_bytes, needed_bytes
from whystall.fleet.gatherings import Gatherings, gatherings
from whystall.fleet.inputs import RecordedFile
from whystall.fleet.spans import spans
from whystall.fleet.summarise import FUNCTION, Manner, Outcome, Task, at_hand, recordings_in, unpacked
from whystall.fleet.summary import Candidate, renumbered
from whystall.fleet.summary_cache import SummaryCache
from whystall.trace.files import Progress
from whystall.trace.model import Trace
from whystall.trace.ranks import of_each_rank

_MOST_NAMED: Final = 8
_MOST_WORLD: Final = 1 << 20  # a damaged file may say anything


@dataclass(frozen=True, eq=False)
class Fleet:
    """The ranks of a job, each with its summary and its file, and in sentences what is missing or was left out."""

    candidates: list[Candidate]
    files: list[RecordedFile]
    failures: list[str]
    notes: list[str]

    @cached_property
    def gatherings(self) -> Gatherings:
        """Who came when to which collective."""
        return gatherings(self.candidates)

    def chosen(self) -> list[Chosen]:
        """The ranks to look at in depth: no more than fit in the memory that is free."""
        largest = max((one.summary.raw_bytes for one in self.candidates), default=0)
        room = max(free_bytes() // needed_bytes(largest), 1)
        return chosen_ranks(self.candidates, self.gatherings, min(MOST_CHOSEN, room), room)

    def in_depth(
        self, chosen: Sequence[Chosen], manner: Manner, *, cache: bool
    ) -> tuple[list[Trace], list[int], list[str]]:
        """The traces of the chosen ranks and their ranks, and a sentence on each file that is gone meanwhile."""
        wanted = {one.rank for one in chosen}
        traces, ranks, gone = [], [], list[str]()
        for one, file in zip(self.candidates, self.files, strict=True):
            if one.rank in wanted:
                found = _read_again(file, manner, gone, cache=cache and not file.is_remote)
                if one.summary.place < len(found):
                    traces.append(found[one.summary.place])
                    ranks.append(one.rank)
        return traces, ranks, gone


def _read_again(file: RecordedFile, manner: Manner, gone: list[str], *, cache: bool) -> list[Trace]:
    try:
        with at_hand(file.address, None) as path:
            return recordings_in(path, manner.limits, gone, cache=cache)
    except InputError as error:
        gone.append(str(error))
        return []


def summarise_all(
    files: Sequence[RecordedFile],
    manner: Manner,
    engine: Engine,
    *,
    cache: Path | None,
    progress: Progress | None = None,
) -> Fleet:
    """The job that the files are recordings of: every file summarised by the engine, each rank once.

    ``cache`` is whystall's cache folder, where finished summaries are kept; ``None``: nowhere. Raises `InputError`
    where no file holds a recording.
    """
    outcomes: list[Outcome] = [Outcome()] * len(files)
    with tempfile.TemporaryDirectory(prefix="whystall-", ignore_cleanup_errors=True) as scratch:
        for place, outcome in _outcomes(files, manner, engine, cache, scratch, progress):
            outcomes[place] = outcome
    if cache is not None:
        SummaryCache(cache).shrink()
    failures = list(dict.fromkeys(sentence for outcome in outcomes for sentence in outcome.failures))
    found = [(summary, file) for outcome, file in zip(outcomes, files, strict=True) for summary in outcome.summaries]
    windows, ranks, notes = of_each_rank([summary.facts for summary, _ in found], windows=False)
    places = [own[-1] for own in windows]
    candidates = [Candidate(rank, renumbered(found[place][0], rank)) for place, rank in zip(places, ranks, strict=True)]
    files = [found[place][1] for place in places]
    return Fleet(candidates, files, failures, [*bounded(notes), *_missing(candidates)])


def _outcomes(
    files: Sequence[RecordedFile],
    manner: Manner,
    engine: Engine,
    cache: Path | None,
    scratch: str,
    progress: Progress | None,
) -> Iterator[tuple[int, Outcome]]:
    """What comes of each file, as it comes; its place says which one it is of."""
    tasks = [
        Task(
            address=file.address,
            mark=file.mark,
            manner=manner,
            cache=str(cache) if cache is not None else None,
            scratch=scratch if file.is_remote else None,
        )
        for file in files
    ]
    work = [
        Work(FUNCTION, msgspec.msgpack.encode(task), needed_bytes(file.raw_bytes))
        for task, file in zip(tasks, files, strict=True)
    ]
    read, whole = 0, sum(file.bytes for file in files)
    for done in engine.map(work):
        file = files[done.place]
        yield done.place, _outcome(file, done.result, done.failure)
        read += file.bytes
        if progress is not None:
            progress(read, whole)


def _outcome(file: RecordedFile, result: bytes | None, failure: str | None) -> Outcome:
    if result is not None:
        try:
            return unpacked(result)
        except ValueError as error:
            failure = f"its summary cannot be read ({error})"
    return Outcome(failures=[f"{file.name}: left out: {failure}"])


def _missing(candidates: Sequence[Candidate]) -> list[str]:
    """The sentence on ranks of the job without a recording; one listed under a free number is not the rank of it."""
    size = max((one.summary.world_size or 0 for one in candidates), default=0)
    there = {one.rank if one.summary.facts.rank is None else one.summary.facts.rank for one in candidates}
    gone = sorted(set(range(size)) - there) if size <= _MOST_WORLD else []
    if not gone:
        return []
    return [f"the job has {size:,} ranks, and {len(gone):,} of them have no recording here: {spans(gone)}"]


def bounded(sentences: Sequence[str], most: int = _MOST_NAMED) -> list[str]:
    """The first sentences, and how many more there are."""
    more = len(sentences) - most
    return list(sentences) if more <= 0 else [*sentences[:most], f"{more:,} more of this kind"]
