"""Input waits in samples of a whole run: the time spent waiting for batches, by the loader's kind and activity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Code, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.loader import LEFT_OF_FETCH, begun_anew
from whystall.diagnosis.detectors.samples import (
    AWAITS,
    LEAST_SEEN,
    SPREAD,
    between_fetches,
    code_of_lines,
    costliest_functions,
    from_samples,
    lines_where,
    measured_runs,
    share_of,
    takes_next,
    time_in,
)
from whystall.diagnosis.detectors.slow_steps import of_slow_steps, slow_steps
from whystall.diagnosis.finding import Evidence

DEFAULT_CORES: Final = 4
"""Cores of a machine whose number is unknown."""
WAITS: Final = 0.3
"""A worker that waits for storage takes less than this much of a core."""
# A worker that computes takes this much of a core.
_COMPUTES: Final = 0.7
# Workers that together take this share of all cores leave training too little.
_SATURATED: Final = 0.4
# An epoch's new workers make one fetch long, or two where the end of the epoch before is one.
_MOST_OF_AN_EPOCH: Final = 2
# Long fetches that are more frequent than this are how a loader with slow workers delivers.
_RARE_FETCHES: Final = 0.2
# Handing over a batch that is ready (pickling, shared memory) is no wait for workers; it takes no longer than this.
_LONGEST_HANDOVER_NS: Final = 2_000_000
# Functions of a thread that receives a batch: it reads a worker's message, and opens the memory that tensors share.
_TAKES_OVER: Final = re.compile(
    r"^(multiprocessing\.(connection|reduction|resource_sharer)|torch\.(multiprocessing|_utils|storage))\b"
)
# Any batch takes a smaller share of the stack samples that found the thread in its loader.
_MOSTLY_TAKING_OVER: Final = 1 / 3
# A thread that is off its core for this share of the time in which it receives batches waits for them.
_MOSTLY_WAITING: Final = 0.7

_COMPUTED: Final = frozenset({"forward", "backward", "optimizer"})

Starved = Literal["input.too-few-workers", "input.cpu-bound", "input.storage-bound"]
Spikes = Literal["input.worker-restart", "input.heavy-tail"]


@dataclass(frozen=True, slots=True)
class InputWaits:
    """The waits for batches in one run, as shares of its steps' time, by their causes.

    Without workers all of it is making batches (``made``). Else the thread takes batches over that are there
    (``taken``), waits in single long fetches (``spikes``, of a kind ``spiked``), or waits for workers in most steps
    (``starving``).
    """

    run: RunSummary
    workers: int
    share: float
    made: float = 0.0
    taken: float = 0.0
    spikes: float = 0.0
    spiked: Spikes | None = None
    starving: float | None = None
    starved: Starved = "input.too-few-workers"
    begun: int | None = None
    """How often the loader was begun, where that is once for each batch."""

    @property
    def code(self) -> Code:
        """The lines at which the thread was found in its loader."""
        return code_of_lines(lines_where(self.run, _in_loader))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The facts about the waits, for every cause."""
        begun = self.begun
        return (
            evidence.time("waiting for batches, on average", round(self.share * self.run.mean_ns), per="step"),
            evidence.share("of the steps' time", self.share),
            evidence.count("workers of the loader", self.workers),
            *(() if begun is None else (evidence.count("times the loader was begun, each for one batch", begun),)),
            *costliest_functions(lines_where(self.run, _in_loader)),
        )


def input_waits(case: Case) -> list[InputWaits]:
    """The waits of all runs whose samples may name a cause."""
    key = ("input_waits", -1)
    if key not in case.kept:
        found = (_waits(case, run) for run in measured_runs(case))
        case.kept[key] = [one for one in found if one is not None]
    waits: list[InputWaits] = case.kept[key]
    return waits


def waited_for_iterator(run: RunSummary) -> tuple[list[SampledLine], float]:
    """The lines that wait for the next item of an iterator other than torch's loader, and their share of the time.

    There are none where the thread was on a core meanwhile: then it makes the items itself. A line at which torch's
    loader was found as well is left out: its workers start and end there.
    """
    torchs = {(line.file, line.line) for line in lines_where(run, _in_loader)}
    lines = lines_where(run, lambda line: takes_next(line) and (line.file, line.line) not in torchs)
    share = time_in(run, lines)
    return (lines, share) if share >= LEAST_SEEN and 1 - run.on_cpu_share >= _MOSTLY_WAITING * share else ([], 0.0)


def starved(case: Case, cause: Starved) -> Iterator[Sampled]:
    """The waits for workers that cannot make batches fast enough, for one reason."""
    for waits in input_waits(case):
        if waits.starved == cause and waits.starving is not None:
            yield starved_for(waits, waits.starving)


def starved_for(waits: InputWaits, share: float, *more: Evidence) -> Sampled:
    """A candidate of a share of the time that workers keep the training thread waiting."""
    run = waits.run
    workers = run.worker_cpu_share
    used = () if workers is None else (evidence.share("of a core that each worker used, in the median", workers),)
    return from_samples(
        waits.starved,
        run,
        share * (1 - LEFT_OF_FETCH),
        part="input",
        evidence=(*waits.evidence, *more, *used),
        code=waits.code,
        saved=((waits.starving or 0.0) * 0.7, share * (1 - LEFT_OF_FETCH), share),
        rivals=("input.too-few-workers", "input.cpu-bound", "input.storage-bound"),
    )


def spiked(case: Case, cause: Spikes, least: float) -> Iterator[Sampled]:
    """The waits in single long fetches, of one kind; the share ``least`` of their cost goes away for sure."""
    for waits in input_waits(case):
        if waits.spiked == cause:
            slow = evidence.count("steps that waited far longer than usual", waits.run.slow_count)
            anew = waits.begun is not None
            share, beside = waits.spikes, 0.0
            if cause == "input.worker-restart":
                share += time_in(waits.run, between_fetches(case, waits.run))
                beside = _while_workers_start(waits)
            scarce = waits.workers >= (case.facts.cores or DEFAULT_CORES)
            yield from_samples(
                cause,
                waits.run,
                share,
                # How often epochs begin is known, however few of them were seen: that is no chance.
                part="" if cause == "input.worker-restart" and _once_an_epoch(case, waits.run) else "input",
                evidence=waits.evidence if anew else (*waits.evidence, slow),
                code=waits.code,
                saved=(share * least, share + beside * scarce, min(share * 1.1 + beside, 0.99)),
                rivals=("input.too-few-workers", "input.worker-restart", "input.heavy-tail"),
            )


def spiked_on_device(case: Case, cause: Spikes) -> Iterator[Sampled]:
    """The same in the slow steps of a job with an accelerator: only a trace shows whether usual waits are hidden."""
    for slow in slow_steps(case):
        share = slow.lost("input")
        workers = _workers(case, slow.run)
        if share > 0 and workers and _kind_of_spikes(case, slow.run) == cause:
            lines = lines_where(slow.run, _in_loader)
            rivals = ("input.too-few-workers", "input.worker-restart", "input.heavy-tail")
            yield of_slow_steps(cause, slow, share, "input", lines, rivals)


def _once_an_epoch(case: Case, run: RunSummary) -> bool:
    """Whether the one loader with workers has a known number of batches per epoch, and no more fetches were long."""
    loaders = [loader for loader in case.facts.loaders if loader.get("workers")]
    batches = [int(loader.get("batches") or 0) for loader in loaders]
    if len(batches) != 1 or not 0 < batches[0] <= run.measured:
        return False
    return run.measured // batches[0] - 1 <= run.slow_count <= run.measured / batches[0] + 1


def _while_workers_start(waits: InputWaits) -> float:
    """The share that steps which wait for new workers lose elsewhere: processes that start take cores from them."""
    return waits.run.lost_when_slow(*_COMPUTED) / max(waits.run.total_ns, 1)


SURE_OF_SPIKES: Final = 1 - SPREAD
"""The share of long fetches that surely goes away if the remedy applies to all of them."""


def takes_over(line: SampledLine) -> bool:
    """Whether the thread was found taking over a batch that a worker has made."""
    return _in_loader(line) and bool(_TAKES_OVER.search(line.leaf)) and not AWAITS.search(line.leaf)


def _in_loader(line: SampledLine) -> bool:
    return line.part == "input"


def _waits(case: Case, run: RunSummary) -> InputWaits | None:
    share = run.shares.get("input", 0.0)
    if share <= 0:
        return None
    workers = _workers(case, run)
    begun = begun_anew(case, run.steps)
    if workers == 0:
        return InputWaits(run, workers, share, made=share, begun=begun)
    if begun is not None:
        return InputWaits(run, workers, share, spikes=share, spiked="input.worker-restart", begun=begun)
    left, taken = share, _taking_over(run, share)
    if taken > 0:
        left = max(left - taken, 0.0)
        if left < taken:  # while batches wait for the training thread, workers wait too: that is no cause of its own
            return InputWaits(run, workers, share, taken=taken)
    else:
        left = max(left - min(run.ready_input_ns, _LONGEST_HANDOVER_NS) / run.mean_ns, 0.0)
    spikes = run.lost_when_slow("input") / max(run.total_ns, 1)
    kind = _kind_of_spikes(case, run) if spikes > left / 2 else None
    if kind is not None:
        left = max(left - spikes, 0.0)
    return InputWaits(
        run,
        workers,
        share,
        taken=taken,
        spikes=spikes if kind is not None else 0.0,
        spiked=kind,
        starving=left,
        starved=_why_starved(case, run, workers),
    )


def _workers(case: Case, run: RunSummary) -> int:
    return max((int(loader.get("workers") or 0) for loader in case.facts.loaders), default=run.workers)


def _taking_over(run: RunSummary, share: float) -> float:
    """The share of time in which the training thread receives batches from workers, where that is large."""
    inside = lines_where(run, _in_loader)
    known = share_of([line for line in inside if takes_over(line)])
    waits = share_of([line for line in inside if AWAITS.search(line.leaf)])
    whole = max(share_of(inside), 1e-9)
    taken = share * (1 - waits / whole) if known > _MOSTLY_TAKING_OVER * whole else 0.0
    # A process that reads data which a worker has not sent yet is on no core.
    return taken if 1 - run.on_cpu_share < _MOSTLY_WAITING * taken else 0.0


def _kind_of_spikes(case: Case, run: RunSummary) -> Spikes | None:
    """The kind of long fetches: an epoch's new workers, or very long samples; ``None`` where they are frequent.

    Persistent workers do not restart, and others restart only when epochs begin; when all are too slow they deliver in
    bursts, and many fetches are long.
    """
    loaders = [loader for loader in case.facts.loaders if loader.get("workers")]
    epochs = sum(int(loader.get("epochs") or 0) for loader in loaders)
    frequent = epochs > 0 and run.slow_count > _MOST_OF_AN_EPOCH * epochs
    if not frequent and (not loaders or not all(loader.get("persistent_workers") for loader in loaders)):
        return "input.worker-restart"
    return "input.heavy-tail" if run.slow_count <= _RARE_FETCHES * run.measured else None


def _why_starved(case: Case, run: RunSummary, workers: int) -> Starved:
    cores = case.facts.cores or DEFAULT_CORES
    busy = run.worker_cpu_share
    if busy is None:
        return "input.too-few-workers"
    if busy * workers >= _SATURATED * cores or (busy >= _COMPUTES and workers + 1 > cores / 2):
        return "input.cpu-bound"
    return "input.storage-bound" if busy < WAITS and workers >= cores else "input.too-few-workers"
