"""A loader's fetches in a recording.

The fetches on the training thread, and which of them are far longer than usual.
"""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import INPUT_NAME, HostState, waits_in_iterators
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import Cause
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask

SINGLE: Final = re.compile(r"SingleProcessDataLoaderIter")
MULTI: Final = re.compile(r"MultiProcessingDataLoaderIter")
LEFT_OF_FETCH: Final = 0.02
"""The rest of a fetch once workers have the batch ready (reference: causes.md, "next() < 5 % of d")."""
# A fetch that takes this many times the median is special: the start of workers, or an odd sample.
_SPIKE: Final = 5.0
_LEAST_SPIKE_NS: Final = 2_000_000
# With fewer fetches a long one among them shows no rhythm.
_FEWEST_FETCHES: Final = 8
# The frame in which Python's multiprocessing starts a process.
_STARTS: Final = re.compile(r"multiprocessing/(process|context)\.py\(\d+\): (start|_Popen)$")
# A loader's frames in which its workers are started and ended (torch/utils/data/dataloader.py).
_HANDLES_WORKERS: Final = re.compile(
    r"dataloader\.py\(\d+\): (__iter__|__del__|_get_iterator|_shutdown_workers)$|" + _STARTS.pattern
)
# Loaders seldom have more workers: long fetches that come more rarely are not theirs.
_MOST_WORKERS: Final = 8
# A smaller need of one more worker is not worth it.
_HARDLY_ANY: Final = 0.1
# The limit for a suggestion without a measurement: workers share storage, memory or a lock.
_MOST_ASKED_FOR: Final = 16
_FEWEST_ASKED_FOR: Final = 2
# A loader that begins in this share of the steps begins in each, and hands out about one batch each time.
_FEWEST_BEGUN: Final = 16
_MOST_STEPS: Final = 0.8
_ABOUT_ONE: Final = 1.1
# Cores that other programs use from which a worker may lack one.
_OTHERS_BUSY: Final = 0.5


def keeping_up(making: float, beside: float) -> int:
    """How many workers make a batch in the time of the step beside it.

    ``making`` is the time that one worker takes for a batch, ``beside`` that of the rest of the step, in one unit.
    """
    if making >= _MOST_ASKED_FOR * beside:
        return _MOST_ASKED_FOR
    return min(max(math.ceil(making / beside - _HARDLY_ANY), _FEWEST_ASKED_FOR), _MOST_ASKED_FOR)


def beside_training(case: Case, workers: int, *, waiting: bool) -> int:
    """How many of some workers there are cores for: one is training's, and those that only wait need none."""
    cores = None if waiting else case.facts.cores
    return min(workers, max(cores - 1, 1)) if cores is not None else workers


def left_for_training(case: Case, workers: int) -> int | None:
    """The threads that training keeps where it uses all cores and workers are to have some; ``None``: it has others.

    On two cores four networks with a worker and both threads were slower than without a worker (0.76 to 0.89), as each
    parallel operator waits for the thread that the worker keeps from its core. With one thread three were faster (1.13
    to 1.49) and one slower (`benchmarks/bench_workers.py`).
    """
    cores, threads = case.facts.cores, case.facts.threads
    if cores is None or threads is None or threads < 2 or threads + workers <= cores:
        return None
    return max(min(cores - workers, threads - 1), 1)


def with_workers(
    cause: Cause,
    case: Case,
    count: int,
    *,
    on_device: bool,
    waiting: bool = False,
    threads_left: int | None = None,
    also: str = "",
) -> Remedy:
    """A cause's remedy with ``count`` workers, and pinned memory if it is useful.

    ``waiting``: they need no cores. ``threads_left``: the number of threads to leave to training beside them.
    """
    cores, threads = (None, None) if waiting else (case.facts.cores, case.facts.threads)
    pinned = ", pin_memory=True" if on_device else ""
    risk = cause.risk
    if threads_left is not None:
        risk = (
            f"Training used {threads} of {cores} cores and keeps {threads_left}: its own operators take longer; "
            "their size gives only a rough estimate. With all its threads beside workers a step is slower than before."
        )
    elif cores is not None and threads is not None and not on_device and count + threads > cores:
        risk = (
            f"Training uses {threads} of {cores} cores: workers take from it what they compute, and steps may become "
            "slower; try it with fewer threads too, and verify."
        )
    others = max((run.other_cores or 0.0 for run in case.runs), default=0.0)
    if cores is not None and not waiting and others >= _OTHERS_BUSY and others + 1 + count > cores:
        risk = (
            f"{risk} Other programs used {others:.1f} of the {cores} cores meanwhile: beside them a worker has no core "
            "of its own, and the step may gain nothing."
        )
    patch = f"DataLoader(..., num_workers={count}, persistent_workers=True{also}{pinned})"
    if threads_left is not None:
        patch = f"torch.set_num_threads({threads_left})  # cores for the workers\n{patch}"
    return Remedy(text=cause.remedy, patch=patch, risk=risk)


def begun_anew(case: Case, steps: int) -> int | None:
    """How often a loader was begun whose epochs are left after a batch, about once a step; ``None``: there is none."""
    for loader in case.facts.loaders:
        epochs, taken, batches = (loader.get(name) for name in ("epochs", "taken", "batches"))
        if epochs is None or taken is None or batches == 1 or epochs < _FEWEST_BEGUN:
            continue
        if epochs >= _MOST_STEPS * steps and taken <= _ABOUT_ONE * epochs:
            return epochs
    return None


def fetches(rank: RankCase, kind: re.Pattern[str]) -> Mask:
    """The host events in which a loader of a kind hands out a batch."""
    return rank.host_named(
        lambda name: bool(INPUT_NAME.search(name) and kind.search(name)), ("annotations", "operators")
    )


def waiting_nodes(case: Case, rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Mask:
    """The nodes of a rank in which it is at its input within some intervals."""
    return case.host_within(rank, begin, end) & case.host_state(rank, HostState.INPUT)


def fetches_from_workers(
    case: Case, rank: RankCase
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]] | None:
    """Begin and end of the fetches from workers, and which may be restarts of workers.

    ``None`` where there are none, or where samples of the whole run cover the workers as well.
    """
    begin, end, _ = rank.intervals(fetches(rank, MULTI))
    if not len(begin) or case.sampled(rank) is not None:
        return None
    return begin, end, _spikes(end - begin) & _may_restart(case, rank, begin, end - begin)


def waits_for_another_loader(case: Case, rank: RankCase) -> Mask:
    """The nodes of a rank that wait for a batch in an iterator other than torch's loader."""
    first, last = rank.offsets["python_functions"]
    waits = np.zeros(rank.offsets["runtime_calls"][1], np.bool_)
    waits[first:last] = waits_in_iterators(rank.trace)
    begin, end, thread = rank.intervals(waits)
    own = thread == rank.training
    return waiting_nodes(case, rank, begin[own], end[own])


def _may_restart(case: Case, rank: RankCase, begin: NDArray[np.int64], duration: NDArray[np.int64]) -> bool:
    """Whether long fetches can be new workers: enough were seen, workers do not persist, and the rhythm is not theirs.

    Workers that are all too slow deliver in bursts: one long fetch for each round of the workers. The end of an epoch
    shows as an extra fetch in a step, which returns no batch and may itself be long.
    """
    if len(duration) < _FEWEST_FETCHES:
        return False
    loaders = [loader for loader in case.facts.loaders if loader.get("workers")]
    fresh = [loader for loader in loaders if not loader.get("persistent_workers")]
    if loaders and (not fresh or sum(int(loader.get("epochs") or 0) for loader in fresh) == 1):
        return False
    spikes = np.flatnonzero(last_of_a_row(_spikes(duration)))
    if epochs_begin(rank, begin, spikes) or len(spikes) < 2:
        return True
    period = float(np.diff(spikes).mean())
    workers = [int(loader["workers"] or 0) for loader in loaders] or range(1, _MOST_WORKERS + 1)
    return not any(abs(period - count) < 1 for count in workers)


def epochs_begin(rank: RankCase, begin: NDArray[np.int64], spikes: NDArray[np.intp]) -> bool:
    """Whether long fetches are seen to begin epochs: processes start, or each follows one that brought nothing."""
    if len(starting_processes(rank, int(begin.min()))[0]):
        return True
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), begin, side="right")
    later = spikes[spikes > 0].tolist()
    return bool(later) and all(step[spike] == step[spike - 1] for spike in later)


def last_of_a_row(chosen: Mask) -> Mask:
    """The last of several long fetches in a row: the end of an epoch may be long, and the next one's first is."""
    last: Mask = chosen & ~np.append(chosen[1:], np.False_)
    return last


def starting_processes(rank: RankCase, after: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of the calls that start processes after an instant, where stacks were recorded."""
    return _calls_after(rank, _STARTS, after)


def handling_workers(rank: RankCase, after: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same of the calls in which a loader starts its workers or ends them."""
    return _calls_after(rank, _HANDLES_WORKERS, after)


def _calls_after(rank: RankCase, names: re.Pattern[str], after: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    begin, end, _ = rank.intervals(rank.host_named(lambda name: bool(names.search(name)), ("python_functions",)))
    later = begin > after
    return begin[later], end[later]


def _spikes(duration: NDArray[np.int64]) -> Mask:
    if len(duration) <= 2:
        return np.zeros(len(duration), np.bool_)
    long: Mask = (duration > _SPIKE * float(np.median(duration))) & (duration > _LEAST_SPIKE_NS)
    return long
