"""Batches made on the training thread: a loader without workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import DEFAULT_CORES, WAITS, InputWaits, input_waits
from whystall.diagnosis.detectors.loader import (
    LEFT_OF_FETCH,
    SINGLE,
    beside_training,
    fetches,
    keeping_up,
    left_for_training,
    waiting_nodes,
    with_workers,
)
from whystall.diagnosis.detectors.python_kinds import kind_of_python
from whystall.diagnosis.detectors.samples import (
    BEGINS_LOADER,
    between_fetches,
    code_of_lines,
    from_samples,
    functions_by_share,
    is_torchs,
    lines_where,
    share_of,
    spoken,
)
from whystall.diagnosis.detectors.threads import slowed_by
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask

CAUSE: Final = cause_beside(__name__)
# A worker takes this many times as long for a batch, which it puts into shared memory: as expected, and at most.
_IN_A_WORKER: Final = (1.1, 1.25)
# The avoidable share of a batch made mostly by one costly operation, at least and as expected: files may be needed
# whole, and pictures be changed at random. Measured in CPU time: rows by .iloc against columns taken out once 0.98,
# lists of a data set's rows against tensors 0.82.
_CHEAPER: Final = {
    "loaded": (0.1, 0.6),
    "converted": (0.3, 0.8),
    "tabular": (0.3, 0.85),
    "tokenized": (0.1, 0.5),
    "unformatted": (0.3, 0.6),
    "decoded": (0.1, 0.5),
    "by_row": (0.4, 0.75),
    "by_line": (0.1, 0.5),
    "costly": (0.05, 0.3),
}
# Functions of the loader itself: it reads rows one by one, and stacks them.
_HANDLES_ROWS: Final = re.compile(r"^torch\.utils\.data\.(_utils\.(fetch|collate)|dataloader):")
# A loader with a larger share of the steps is costly, with any batches; a line with more than half of it.
_MOSTLY_MADE: Final = 0.4
_MOST_OF_IT: Final = 0.5
_NEARLY_ALL: Final = 0.75
_ALL_IN_A_LINE: Final = 0.2
"""Minimum share of the steps, where nearly all of it is in one line."""
_SURE_OF_BEGINNING: Final = 0.7
# Two jobs that shuffled 200 000 indices for each batch lost a third and more of their other time, too.
_COLD_CACHES: Final = (0.15, 0.2)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Fetches of a loader that makes batches itself."""
    for rank in case.ranks:
        own = fetches(rank, SINGLE)
        if own.any() and not (case.sampled(rank) is not None and any(waits.begun for waits in input_waits(case))):
            yield _with_workers_meanwhile(case, rank, own)


def _with_workers_meanwhile(case: Case, rank: RankCase, own: Mask) -> Replayed:
    begin, end, _ = rank.intervals(own)
    nodes = waiting_nodes(case, rank, begin, end)
    per_step = case.time_of(nodes)
    # Workers make batches while the step computes: the step still waits for the rest.
    meanwhile = max(case.step_ns - per_step, 1)
    wanted = (
        keeping_up(per_step, meanwhile) if case.facts.cores else min(keeping_up(per_step, meanwhile), DEFAULT_CORES)
    )
    workers = beside_training(case, wanted, waiting=False)
    left = max(LEFT_OF_FETCH, (per_step / workers - meanwhile) / max(per_step, 1))
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("the training thread makes the batch itself", per_step, case.events_of(nodes), per=case.per),
            evidence.share(f"of the {case.per}", per_step / max(case.step_ns, 1)),
        ),
        removal=case.without(nodes, left),
        ceiling=case.without(nodes),
        method=f"replay: batches made by {workers} workers meanwhile",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.1,
        rivals=("host.python", "host.launch-bound", "host.sync", "input.too-few-workers"),
        remedy=with_workers(CAUSE, case, workers, on_device=rank.on_device),
        if_hidden="batches are made on the training thread, but the device has work queued meanwhile: leave it",
    )


def in_samples(case: Case) -> Iterator[Sampled]:
    """Time in a loader without workers."""
    for waits in input_waits(case):
        if waits.made > 0 and waits.begun is not None:
            yield _kept_iterator(case, waits)
        elif waits.made > 0:
            wanted, waiting = keeping_up(waits.made, 1 - waits.made), _computing(waits.run, waits.made) <= WAITS
            most = beside_training(case, wanted, waiting=waiting)
            # On full cores workers take some from training, whose operators take longer then: the number that saves
            # most wins.
            tried = [
                _Trial.of(case, waits, count, waiting=waiting) for count in range(most if waiting else 1, most + 1)
            ]
            best = max(tried, key=lambda trial: (trial.saved, -trial.workers))
            yield _made_elsewhere(
                waits,
                best,
                with_workers(CAUSE, case, best.workers, on_device=False, waiting=waiting, threads_left=best.threads),
            )


def _made_elsewhere(waits: InputWaits, best: _Trial, workers: Remedy) -> Sampled:
    """Batches that workers make, or that are cheaper to make, where most of the time goes into something known."""
    run = waits.run
    inside = lines_where(run, lambda line: line.part == "input")
    handled = [line for line in inside if _HANDLES_ROWS.search(line.leaf)]
    kind = "by_row" if share_of(handled) > _MOST_OF_IT * share_of(inside) else kind_of_python(inside)
    known = CAUSE.remedies.get(kind or "")
    low, saved, remedy = min(best.saved * 0.85, best.low), best.saved, workers
    first = _in_one_line(waits)
    # Its kind is unknown, but it is most of the step, or nearly all of it is one line that makes samples.
    if known is None and waits.made >= (_ALL_IN_A_LINE if first > _NEARLY_ALL else _MOSTLY_MADE):
        kind = "by_line" if first > _MOST_OF_IT else "costly"
        known = CAUSE.remedies[kind] if waits.made * _CHEAPER[kind][1] > saved else None
    if known is not None:
        least, usual = _CHEAPER[kind or ""]
        low, saved = max(low, waits.made * least), max(saved, waits.made * usual)
        remedy = msgspec.structs.replace(workers, text=f"{known.text} {workers.text}")
        if saved > best.saved:  # then it is the first thing to do
            also = f"{known.text} Workers beside training help less here, as they take its cores."
            remedy = msgspec.structs.replace(known, text=also)
    elif (name := _one_function(inside)) is not None:
        where = f"Making a batch mostly takes {spoken(name)}"
        once = f"{where}: if its result for a sample never changes, compute it once, before training."
        remedy = msgspec.structs.replace(workers, text=f"{once} {workers.text}")
    return from_samples(
        CAUSE.id,
        run,
        saved,
        part="input",
        evidence=waits.evidence,
        code=waits.code,
        saved=(low, saved, max(waits.made, saved)),
        method="samples: batches made by workers while the step computes, on the cores there are, or made cheaper",
        rivals=("host.python", "input.storage-bound", "host.cpu-contention"),
        remedy=remedy,
    )


def _one_function(lines: list[SampledLine]) -> str | None:
    """A function outside of torch that takes more than half of the time at some lines."""
    name, share = next(iter(functions_by_share(lines)), ("", 0.0))
    return name if share > _MOST_OF_IT and not is_torchs(name) else None


def _in_one_line(waits: InputWaits) -> float:
    """The share of the input's time in its first line; 0 for a line of the loop, found elsewhere just as often."""
    first = next((one for one in waits.code.lines if one.line is not None), None)
    if first is None or first.share is None:
        return 0.0
    there = lines_where(waits.run, lambda line: (line.file, line.line) == (first.file, first.line))
    inside = share_of([line for line in there if line.part == "input"])
    return first.share if inside > _MOST_OF_IT * share_of(there) else 0.0


def _kept_iterator(case: Case, waits: InputWaits) -> Sampled:
    """A loader that is begun for each batch: the cost of its begin, at most the whole cost of batches."""
    run = waits.run
    begins = lines_where(run, lambda line: line.part == "input" and bool(BEGINS_LOADER.search(line.leaf)))
    freed = between_fetches(case, run)
    share, most = share_of(begins) + share_of(freed), waits.made + share_of(freed)
    # The indices of a whole epoch evict the step's data from the caches.
    usual, most = (taken + (1 - taken) * more for taken, more in zip((share, most), _COLD_CACHES, strict=True))
    return from_samples(
        CAUSE.id,
        run,
        share,
        part="input",
        evidence=waits.evidence,
        code=code_of_lines([*begins, *freed]) if begins else waits.code,
        saved=(share * _SURE_OF_BEGINNING, min(usual, most), most),
        method="samples: the share of the steps in which the loader is begun",
        rivals=("host.python", "input.storage-bound", "host.cpu-contention"),
        detail="a new iterator for each batch",
        remedy=CAUSE.remedies["one_iterator"],
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """A number of workers, the threads that are left to training where they take some, and the share saved."""

    workers: int
    threads: int | None
    saved: float
    low: float

    @classmethod
    def of(cls, case: Case, waits: InputWaits, workers: int, *, waiting: bool) -> Self:
        """The saving of the workers as expected, and at the least."""
        threads = None if waiting else left_for_training(case, workers)
        most, slower = slowed_by(case, waits.run, threads)
        usual, longest = _IN_A_WORKER
        saved = _with_workers(case, waits, workers, threads, slower, usual)
        return cls(workers, threads, saved, _with_workers(case, waits, workers, threads, most, longest))


def _computing(run: RunSummary, share: float) -> float:
    """The share of its time that the input is on a core."""
    return min(max((run.on_cpu_share - (1 - share)) / share, 0.0), 1.0)


def _with_workers(
    case: Case, waits: InputWaits, workers: int, threads: int | None, slower: float, making: float
) -> float:
    """The share saved when batches are made beside the step.

    The step takes ``slower`` times as long on its threads (``threads`` where some are taken from it), and a batch
    that computes ``making`` times as long.
    """
    share, computing = waits.made, _computing(waits.run, waits.made)
    cores = case.facts.cores or DEFAULT_CORES
    used = threads or min(case.facts.threads or cores, cores)
    training, fetching = (1 - share) * slower, share * LEFT_OF_FETCH
    if computing <= WAITS:  # then training waits for the hand-over
        training += fetching
    else:
        share *= making
    # The input's CPU time that finds no free core is taken from training.
    busy = (training * used + share * computing) / cores + fetching
    return max(1 - max(training, busy, share / workers), 0.0)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace",)), Finder(in_samples, ("samples", "no_device"))))
