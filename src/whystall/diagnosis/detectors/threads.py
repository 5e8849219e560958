"""The effect of the number of operator threads on a job on CPUs."""

from __future__ import annotations

from typing import Final

from whystall.analysis.host_states import HostState
from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.case import Case
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask

LOST: Final = 0.15
"""Excess of operators on two threads over half the time: oneDNN's and MKL's come to 0.53 to 0.63 of it."""
# Waking threads takes 50 to 100 us where they sleep; `at::internal::GRAIN_SIZE` is 32,768 elements.
_LONG_NS: Final = 200_000
# The parallel share of a step if no operators were recorded.
_HALF: Final = 0.5
# Shorter operators are shared in part as well: the whole is at most this many times that of long ones.
_MORE: Final = 1.25


def shared_by_threads(case: Case, rank: RankCase) -> Mask:
    """The nodes of operators that are long enough to be shared by threads."""
    return case.work_of(rank, rank.trace.operators["self_ns"].to_numpy() >= _LONG_NS)


def slowed_by(case: Case, run: RunSummary, threads: int | None) -> tuple[float, float]:
    """How many times as long the operators of a step take on ``threads`` threads: at most, and as expected.

    Fetches do not count: they are Python of one thread. ``None`` are the threads that they have.
    """
    have = case.facts.threads
    if threads is None or have is None or threads >= have:
        return 1.0, 1.0
    most, shared = have / threads, _HALF
    for rank in case.ranks:
        if rank.rank == run.rank:
            fetching = case.host_state(rank, HostState.INPUT)
            training = case.step_ns - case.time_of(fetching)
            shared = min(case.time_of(shared_by_threads(case, rank) & ~fetching) / max(training, 1), 1.0)
    return 1 + min(shared * _MORE, 1.0) * (most - 1), 1 + shared * max(most / (1 + LOST) - 1, 0.0)
