"""What samples of a whole run show of its input: the loader, its workers, and what handing over a batch takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from whystall.analysis.results import RunSummary, SampledLine
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import CodeLocation, Evidence
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.diagnosis.rules.samples import (
    AWAITS,
    NINE_IN_TEN,
    SPREAD,
    code_of_places,
    from_samples,
    measured_runs,
    places_where,
    share_of,
)

# A worker that computes takes this much of a core; one that waits for storage less than this.
_COMPUTES: Final = 0.7
_WAITS: Final = 0.3
# Workers that together take this share of all cores leave training too little.
_SATURATED: Final = 0.4
_LEFT_OF_FETCH: Final = 0.02
_DEFAULT_CORES: Final = 4
# Long fetches that are more frequent than this are how a loader with slow workers delivers.
_RARE_FETCHES: Final = 0.2
# Handing over a batch that is ready (pickling, shared memory) is no wait for workers; it takes no longer than this.
_LONGEST_HANDOVER_NS: Final = 2_000_000
# Where a thread is found that takes a batch over: it reads what a worker sent, and opens the memory that tensors share.
_TAKES_OVER: Final = re.compile(
    r"^(multiprocessing\.(connection|reduction|resource_sharer)|torch\.(multiprocessing|_utils|storage))\b"
)
# What of a batch's way from a worker to the training thread stays, when its tensors are few.
_LEFT_OF_HANDOVER: Final = 0.05
# Fewer of the looks that found the thread in its loader are what any batch takes.
_MOSTLY_TAKING_OVER: Final = 1 / 3


def inputs(case: Case) -> Iterator[Candidate]:
    """The time spent waiting for batches, by what the loader is and what its workers do."""
    for run in measured_runs(case):
        share = run.shares.get("input", 0.0)
        if share <= 0:
            continue
        workers = max((int(loader.get("workers") or 0) for loader in case.facts.loaders), default=run.workers)
        code = code_of_places(places_where(run, lambda place: place.part == "input"))
        evidence: tuple[Evidence, ...] = (
            facts.time("waiting for batches per step, on average", round(share * run.mean_ns)),
            facts.share("of the steps' time", share),
            facts.count("workers of the loader", workers),
        )
        if workers == 0:
            yield _without_workers(case, run, share, code, evidence)
            continue
        taking = _taking_over(run, share)
        if taking > 0:
            yield _collate(run, taking, evidence)
            share = max(share - taking, 0.0)
            if share < taking:  # while batches wait to be taken over, workers wait as well: that is no cause of its own
                continue
        else:
            share = max(share - min(run.ready_input_ns, _LONGEST_HANDOVER_NS) / run.mean_ns, 0.0)
        spikes = _input_spikes(run)
        cause = _spike_cause(case, run) if spikes > share / 2 else None
        if cause is not None:
            yield _in_spikes(cause, run, spikes, code, evidence)
            share = max(share - spikes, 0.0)
        yield _by_workers(case, run, share, workers, code, evidence)


WORKERS_OF_REMEDY: Final = 4
"""Which the patch of ``input.synchronous-loader`` gives a loader (causes.toml)."""


def _without_workers(
    case: Case, run: RunSummary, share: float, code: tuple[CodeLocation, ...], evidence: tuple[Evidence, ...]
) -> Candidate:
    saved = _with_workers(case, run, share)
    return from_samples(
        "input.synchronous-loader",
        run,
        saved,
        part="input",
        evidence=evidence,
        code=code,
        saved=(saved * 0.85, saved, max(share, saved)),
        method="samples: batches made by workers while the step computes, on the cores there are",
        rivals=("host.python", "input.storage-bound", "host.cpu-contention"),
    )


def _in_spikes(
    cause: str, run: RunSummary, spikes: float, code: tuple[CodeLocation, ...], evidence: tuple[Evidence, ...]
) -> Candidate:
    return from_samples(
        cause,
        run,
        spikes,
        part="input",
        evidence=(*evidence, facts.count("steps that waited far longer than usual", len(run.slow))),
        code=code,
        saved=(spikes * (0.5 if cause == "input.heavy-tail" else 1 - SPREAD), spikes, min(spikes * 1.1, 0.99)),
        rivals=("input.too-few-workers", "input.worker-restart", "input.heavy-tail"),
    )


def _by_workers(
    case: Case,
    run: RunSummary,
    share: float,
    workers: int,
    code: tuple[CodeLocation, ...],
    evidence: tuple[Evidence, ...],
) -> Candidate:
    cause = _worker_cause(case, run, workers)
    least = share * 0.7
    if cause == "input.cpu-bound":  # the training thread lacks the cores that the workers take
        lacking = max(1 - run.on_cpu_share - run.shares.get("input", 0.0) - run.shares.get("save", 0.0), 0.0)
        share += lacking
        evidence = (*evidence, facts.share("of the steps' time the training thread waited for a core", lacking))
    return from_samples(
        cause,
        run,
        share * (1 - _LEFT_OF_FETCH),
        part="input",
        evidence=(*evidence, *_worker_evidence(run)),
        code=code,
        saved=(least, share * (1 - _LEFT_OF_FETCH), share),
        rivals=("input.too-few-workers", "input.cpu-bound", "input.storage-bound"),
    )


def _taking_over(run: RunSummary, share: float) -> float:
    """The share of time in which the training thread takes over batches that workers have made, where that is much of it."""
    inside = places_where(run, _in_loader)
    known = share_of([place for place in inside if _takes_over(place)])
    waits = share_of([place for place in inside if AWAITS.search(place.leaf)])
    whole = max(share_of(inside), 1e-9)
    return share * (1 - waits / whole) if known > _MOSTLY_TAKING_OVER * whole else 0.0


def _in_loader(place: SampledLine) -> bool:
    return place.part == "input"


def _takes_over(place: SampledLine) -> bool:
    return _in_loader(place) and bool(_TAKES_OVER.search(place.leaf)) and not AWAITS.search(place.leaf)


def _collate(run: RunSummary, share: float, evidence: tuple[Evidence, ...]) -> Candidate:
    lines = places_where(run, _takes_over)
    saved = share * (1 - _LEFT_OF_HANDOVER)
    seen = share_of(lines)
    unsure = NINE_IN_TEN * (seen * (1 - seen) / max(run.looks, 1)) ** 0.5
    leaf = max(lines, key=lambda place: place.share).leaf
    return from_samples(
        "input.collate",
        run,
        share,
        part="input",
        evidence=(
            *evidence,
            facts.share("of the steps' time taking batches over that workers have made", share),
            facts.text("found most often in", leaf),
        ),
        code=code_of_places(lines),
        saved=(max(saved * 0.7 - unsure, 0.0), saved, min(share + unsure, 0.99)),
        method="samples: the looks that found the training thread taking batches over",
        rivals=("input.too-few-workers", "input.cpu-bound"),
    )


def _with_workers(case: Case, run: RunSummary, share: float) -> float:
    """The share saved when batches are made beside the step: what takes CPU needs a core that training leaves free."""
    cores = case.facts.cores or _DEFAULT_CORES
    threads = min(case.facts.threads or cores, cores)
    computing = min(max((run.on_cpu_share - (1 - share)) / share, 0.0), 1.0)
    # Of the input's CPU time, what finds no free core is taken from training.
    busy = ((1 - share) * threads + share * computing) / cores
    fetching = share * _LEFT_OF_FETCH
    if computing > _WAITS:
        return max(1 - max(1 - share, busy, share / max(cores, 1)) - fetching, 0.0)
    # What only waits needs no cores: as many workers as the remedy names make batches at a time.
    return max(1 - max(1 - share + fetching, busy + fetching, share / WORKERS_OF_REMEDY), 0.0)


def _spike_cause(case: Case, run: RunSummary) -> str | None:
    """What long fetches are: an epoch's new workers, or samples that take very long; ``None`` where they are too frequent.

    Workers that stay alive do not start again; when all are too slow they deliver in bursts, and many fetches are long.
    """
    loaders = [loader for loader in case.facts.loaders if loader.get("workers")]
    if not loaders or not all(loader.get("persistent_workers") for loader in loaders):
        return "input.worker-restart"
    return "input.heavy-tail" if len(run.slow) <= _RARE_FETCHES * run.measured else None


def _input_spikes(run: RunSummary) -> float:
    """The share of time that single long fetches took."""
    return sum(step.lost_ns.get("input", 0) for step in run.slow) / max(run.total_ns, 1)


def _worker_cause(case: Case, run: RunSummary, workers: int) -> str:
    cores = case.facts.cores or _DEFAULT_CORES
    busy = run.worker_cpu_share
    if busy is None:
        return "input.too-few-workers"
    if busy * workers >= _SATURATED * cores or (busy >= _COMPUTES and workers + 1 > cores / 2):
        return "input.cpu-bound"
    return "input.storage-bound" if busy < _WAITS and workers >= cores else "input.too-few-workers"


def _worker_evidence(run: RunSummary) -> tuple[Evidence, ...]:
    if run.worker_cpu_share is None:
        return ()
    return (facts.share("of a core that each worker used, in the median", run.worker_cpu_share),)


RULES: Final = (Rule("input.too-few-workers", ("samples",), inputs),)
