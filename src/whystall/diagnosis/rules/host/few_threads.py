"""A job on CPUs whose operators have fewer threads than there are cores for them.

It is a note without a gain: one thread may be intended (a measurement, a neighbour that comes later), and nothing in a
recording separates that from an oversight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.threads import LOST, shared_by_threads
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of

CAUSE: Final = cause_beside(__name__)
_LEAST_FREE: Final = CAUSE.threshold("least_free")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
# Beyond this many times the threads their effect is unknown.
_MOST_TIMES: Final = 4


def of_watched(case: Case) -> Iterator[Standing]:
    """Threads that torch was given, against the cores that the process may use and that nothing else uses."""
    threads, cores = case.facts.threads, case.facts.cores_here or case.facts.cores
    ranks = case.facts.ranks_here or case.facts.processes
    if threads is None or cores is None:
        return
    for rank in case.ranks:
        run = case.sampled(rank)
        if run is None:
            continue
        mine = (cores - _used(run)) / ranks
        free = mine - threads
        if free < _LEAST_FREE:
            continue
        nodes = shared_by_threads(case, rank)
        per_step = case.time_of(nodes)
        ideal = threads / min(mine, _MOST_TIMES * threads)
        left = min(ideal * (1 + LOST), 1.0)
        if per_step * (1 - left) < _LEAST_SHARE * case.step_ns:
            continue
        wanted = max(cores // ranks, threads + 1)
        yield Standing(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.count("threads of torch", threads),
                evidence.count("cores of the process that nothing else uses, on average", mine),
                evidence.time(
                    "in operators that are long enough to be shared", per_step, case.events_of(nodes), per=case.per
                ),
            ),
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            confidence=0.85,
            severity="info",
            nodes=nodes,
            remedy=Remedy(text=CAUSE.remedy, patch=f"torch.set_num_threads({wanted})", risk=CAUSE.risk),
            rivals=("compute.at-limit", "host.cpu-contention"),
        )


def _used(run: RunSummary) -> float:
    """Cores that other processes, loaders' workers and other threads of Python's use."""
    workers = run.workers * (run.worker_cpu_share or 0.0)
    return (run.other_cores or 0.0) + run.thread_cores + workers


RULE = Rule(CAUSE, (Finder(of_watched, ("trace", "samples", "no_device", "operators")),))
