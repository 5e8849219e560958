"""Many ranks: each summarised by itself, then a few of them looked at together, in depth."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
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
from whystall.fleet.spans import without_recording
from whystall.fleet.summarise import FUNCTION, Manner, Outcome, Task, Window, joined, unpacked
from whystall.fleet.summary import Candidate, RankSummary, renumbered
from whystall.fleet.summary_cache import SummaryCache
from whystall.trace.files import Progress
from whystall.trace.model import Trace
from whystall.trace.ranks import of_each_rank
from whystall.trace.windows import moved_by

_MOST_NAMED: Final = 8

Found = tuple[RankSummary, RecordedFile]


@dataclass(frozen=True, eq=False)
class Fleet:
    """The ranks of a job, each with its summary and its windows, and sentences on missing and left out ones."""

    candidates: list[Candidate]
    windows: list[list[Window]]
    failures: list[str]
    notes: list[str]

    @cached_property
    def gatherings(self) -> Gatherings:
        """Each rank's arrival at each collective."""
        return gatherings(self.candidates)

    def chosen(self) -> list[Chosen]:
        """The ranks to look at in depth: no more than fit in the memory that is free."""
        largest = max((one.summary.raw_bytes for one in self.candidates), default=0)
        room = max(free_bytes() // needed_bytes(largest), 1)
        return chosen_ranks(self.candidates, self.gatherings, min(MOST_CHOSEN, room), room)

    def in_depth(
        self, wanted: Collection[int], manner: Manner, *, cache: bool
    ) -> tuple[list[Trace], list[int], list[str]]:
        """The traces of the wanted ranks, which of these are there, and a sentence on each file that is gone."""
        traces, ranks, gone = [], [], list[str]()
        for one, windows in zip(self.candidates, self.windows, strict=True):
            if one.rank in wanted:
                try:
                    traces.append(joined(windows, manner.limits, gone, cache=cache))
                except InputError as error:
                    gone.append(str(error))
                else:
                    ranks.append(one.rank)
        return traces, ranks, gone


def summarise_all(
    files: Sequence[RecordedFile],
    manner: Manner,
    engine: Engine,
    *,
    cache: Path | None,
    windows: bool = True,
    progress: Progress | None = None,
) -> Fleet:
    """The job that the files are recordings of: every file summarised by the engine, each rank once.

    Several ``windows`` of a rank are read once more and summarised as one recording: the offset of each is known only
    with those of all ranks. ``cache`` is whystall's cache folder, where finished summaries are kept; ``None``: nowhere.
    """
    with tempfile.TemporaryDirectory(prefix="whystall-", ignore_cleanup_errors=True) as scratch:
        run = _Run(manner, engine, cache, scratch, progress)
        outcomes = run.outcomes(files)
        found = [(one, file) for outcome, file in zip(outcomes, files, strict=True) for one in outcome.summaries]
        places, ranks, notes = of_each_rank([summary.facts for summary, _ in found], windows=windows)
        fitting, left_out = _that_fit([[found[place] for place in own] for own in places])
        recorded = _windows(fitting)
        again = [number for number, own in enumerate(recorded) if len(own) > 1 or own[0].moved_ns]
        of_several = dict(zip(again, run.outcomes([recorded[number] for number in again]), strict=True))
    if cache is not None:
        SummaryCache(cache).shrink()
    outcomes += of_several.values()
    failures = list(dict.fromkeys(sentence for outcome in outcomes for sentence in outcome.failures))
    candidates, there = list[Candidate](), list[list[Window]]()
    for number, (rank, own) in enumerate(zip(ranks, fitting, strict=True)):
        known = of_several[number].summaries if number in of_several else [own[-1][0]]
        candidates += [Candidate(rank, renumbered(summary, rank)) for summary in known]
        there += [recorded[number] for _ in known]
    return Fleet(candidates, there, failures, [*bounded(notes), *left_out, *_missing(candidates)])


def _that_fit(ranks: Sequence[Sequence[Found]]) -> tuple[list[list[Found]], list[str]]:
    """The latest windows of each rank that fit in memory together for any rank; a sentence on those left out.

    The number is the same for all ranks, since windows are compared between ranks.
    """
    most, free = max(map(len, ranks), default=0), free_bytes()
    count = most
    while count > 1 and needed_bytes(max(sum(one.raw_bytes for one, _ in own[-count:]) for own in ranks)) > free:
        count -= 1
    fitting = [list(own[-count:]) for own in ranks]
    if count == most:
        return fitting, []
    return fitting, [f"of {most} windows of a rank the latest {count} are analysed: more do not fit in memory together"]


def _windows(ranks: Sequence[Sequence[Found]]) -> list[list[Window]]:
    """The windows of each rank, and the shift of each that removes unrecorded time between them."""
    moved = moved_by([[one.facts for one, _ in own] for own in ranks])
    return [
        [Window(file, one.place, by) for (one, file), by in zip(own, moves, strict=True)]
        for own, moves in zip(ranks, moved, strict=True)
    ]


@dataclass
class _Run:
    """The execution of tasks, and the progress of their reading."""

    manner: Manner
    engine: Engine
    cache: Path | None
    scratch: str
    progress: Progress | None
    read: int = field(default=0, init=False)
    whole: int = field(default=0, init=False)

    def outcomes(self, wanted: Sequence[RecordedFile] | Sequence[list[Window]]) -> list[Outcome]:
        """The outcome of each file, or of the windows of each rank."""
        if not wanted:  # an engine may take seconds to start
            return []
        cache = str(self.cache) if self.cache is not None else None
        tasks = [Task(of=one, manner=self.manner, cache=cache, scratch=self.scratch) for one in wanted]
        work = [
            Work(FUNCTION, msgspec.msgpack.encode(task), needed_bytes(sum(file.raw_bytes for file in task.files)))
            for task in tasks
        ]
        self.whole += sum(file.bytes for task in tasks for file in task.files)
        outcomes = [Outcome()] * len(tasks)
        for done in self.engine.map(work):
            files = tasks[done.place].files
            outcomes[done.place] = _outcome(files[-1].name, done.result, done.failure)
            self.read += sum(file.bytes for file in files)
            if self.progress is not None:
                self.progress(self.read, self.whole)
        return outcomes


def _outcome(name: str, result: bytes | None, failure: str | None) -> Outcome:
    if result is not None:
        try:
            return unpacked(result)
        except ValueError as error:
            failure = f"its summary cannot be read ({error})"
    return Outcome(failures=[f"{name}: left out: {failure}"])


def _missing(candidates: Sequence[Candidate]) -> list[str]:
    """The sentence on ranks of the job without a recording; one listed under a free number is not the rank of it."""
    size = max((one.summary.world_size or 0 for one in candidates), default=0)
    there = {one.rank if one.summary.facts.rank is None else one.summary.facts.rank for one in candidates}
    told = without_recording(size, there)
    return [] if told is None else [told]


def bounded(sentences: Sequence[str], most: int = _MOST_NAMED) -> list[str]:
    """The first sentences, and how many more there are."""
    more = len(sentences) - most
    return list(sentences) if more <= 0 else [*sentences[:most], f"{more:,} more of this kind"]
