"""A job on CPUs whose operators are given fewer threads than there are cores for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of

CAUSE: Final = cause_beside(__name__)
_LONG_NS: Final = CAUSE.threshold("long_ns")
_LEAST_FREE: Final = CAUSE.threshold("least_free")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_LOST: Final = CAUSE.threshold("lost")
# Nobody is promised more than twice as many threads bring, unless many more are free; never more than four times.
_MOST_TIMES: Final = 4
# At the least a quarter of the ideal saving comes.
_SURE: Final = 0.25


def of_watched(case: Case) -> Iterator[Replayed]:
    """Threads that torch was given, against the cores that the process may use and that nothing else uses."""
    threads, cores = case.facts.threads, case.facts.cores
    if threads is None or cores is None:
        return
    for rank in case.ranks:
        run = case.sampled(rank)
        if run is None:
            continue
        mine = (cores - _used(run)) / case.facts.processes
        free = mine - threads
        if free < _LEAST_FREE:
            continue
        long = rank.trace.operators["self_ns"].to_numpy() >= _LONG_NS
        nodes = case.work_of(rank, long)
        per_step = case.time_of(nodes)
        ideal = threads / min(mine, _MOST_TIMES * threads)
        left = min(ideal * (1 + _LOST), 1.0)
        if per_step * (1 - left) < _LEAST_SHARE * case.step_ns:
            continue
        wanted = max(cores // case.facts.processes, threads + 1)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.count("threads of torch", threads),
                evidence.count("cores of the process that nothing else uses, on average", mine),
                evidence.time(
                    "in operators that are long enough to be shared", per_step, case.events_of(nodes), per=case.per
                ),
            ),
            removal=case.without(nodes, left),
            floor=case.without(nodes, 1 - _SURE * (1 - ideal)),
            ceiling=case.without(nodes, ideal),
            method="replay: long operators on all cores that are free",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            tier=1,
            remedy=Remedy(text=CAUSE.remedy, patch=f"torch.set_num_threads({wanted})", risk=CAUSE.risk),
            rivals=("compute.at-limit", "host.cpu-contention"),
        )


def _used(run: RunSummary) -> float:
    """Cores that other processes, loaders' workers and other threads of Python's use."""
    workers = run.workers * (run.worker_cpu_share or 0.0)
    return float(np.sum([run.other_cores or 0.0, run.thread_cores, workers]))


RULE = Rule(CAUSE, (Finder(of_watched, ("trace", "samples", "no_device", "operators")),))
