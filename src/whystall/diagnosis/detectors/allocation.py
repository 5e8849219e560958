"""Device memory that is allocated and freed in steady steps: the calls, and whether the allocator gives memory back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.analysis.host_states import HostState
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.detectors.host_calls import (
    calls_per_step,
    hidden,
    waits_within,
)
from whystall.diagnosis.detectors.measured_convolutions import measured_until
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.vocabulary.runtime_calls import is_call

_TRIALS: Final = ("compute.slow-convolution",)
_MOSTLY: Final = 0.7
_KEPT: Final = Remedy(
    text="Leave torch.cuda.empty_cache() out of the loop, where that is called: torch keeps freed memory for what "
    "comes next, and gives it back by itself where it runs short.",
    patch="-torch.cuda.empty_cache()",
    risk="Another process on the same device finds less memory free.",
)


def allocation_calls(case: Case, cause: str, *, frees: bool) -> Iterator[Replayed]:
    """A candidate for each rank that allocates in steady steps, and that frees in most of them or does not."""
    for rank in case.ranks:
        nodes = case.host_state(rank, HostState.ALLOCATOR)
        if not case.in_window(nodes).any():
            continue
        freeing = rank.host_named(lambda name: is_call(name, "free"), ("runtime_calls",))
        freed = int(np.count_nonzero(case.in_window(case.nodes(rank, host=freeing))))
        gives_back = freed > case.steps // 2
        by_itself = gives_back and never_retried(case, rank.rank)
        if (gives_back and not by_itself) != frees:
            continue
        calls = rank.host_named(lambda name: is_call(name, "allocate"), ("runtime_calls",))
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=cause,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "in calls that allocate or free device memory", per_step, case.events_of(nodes), per=case.per
                ),
                evidence.count("such calls", calls_per_step(case, rank, calls), per=case.per),
            ),
            removal=Change(duration=case.without(nodes).duration, removed_edges=waits_within(case, rank, calls)),
            method="replay: without the calls",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            rivals=("host.launch-bound", "host.sync", "host.python"),
            if_hidden=hidden(rank, "device memory is allocated in every step"),
            detail="it is given back each time, with memory to spare" if by_itself else "",
            remedy=_KEPT if by_itself else None,
            symptom_of=_TRIALS if _for_trials(case, rank, nodes) else (),
        )


def _for_trials(case: Case, rank: RankCase, nodes: Mask) -> bool:
    """Whether most of the time goes by within convolutions that a library times: trials need workspaces."""
    until = measured_until(rank)
    if until is None:
        return False
    inside = case.host_within_operators(rank, until[:-1] >= 0)
    return case.time_of(nodes & inside) > _MOSTLY * case.time_of(nodes)


def never_retried(case: Case, rank: int) -> bool:
    """Whether torch's allocator reports that it never freed memory to find some: any frees are the job's own."""
    known = [one for run in case.runs if run.rank == rank for one in run.allocators]
    return bool(known) and all(one.retries == 0 and one.steps >= FEWEST_SAMPLED_STEPS for one in known)
