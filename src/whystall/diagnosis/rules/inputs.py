"""Causes in the input: the loader, its workers, what they do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import INPUT_NAME, HostState
from whystall.diagnosis.case import Case, RankCase
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.diagnosis.rules.stretches import recurrence
from whystall.replay.graph import Mask

_SINGLE: Final = re.compile(r"_SingleProcessDataLoaderIter")
_MULTI: Final = re.compile(r"_MultiProcessingDataLoaderIter")
# A fetch that takes so many times the median fetch is one of a kind: the start of workers, or an odd sample.
_SPIKE: Final = 5.0
_LEAST_SPIKE_NS: Final = 2_000_000
# What is left of a fetch once workers have the batch ready (reference: causes.md, "next() < 5 % of d").
_LEFT_OF_FETCH: Final = 0.02
# Where the count of free cores is not known, a loader gets as many workers as a small machine has.
_DEFAULT_WORKERS: Final = 4


def _fetches(rank: RankCase, kind: re.Pattern[str]) -> Mask:
    return rank.host_named(
        lambda name: bool(INPUT_NAME.search(name) and kind.search(name)), ("annotations", "operators")
    )


def synchronous_loader(case: Case) -> Iterator[Candidate]:
    """Batches made on the training thread."""
    for rank in case.ranks:
        fetches = _fetches(rank, _SINGLE)
        if not fetches.any():
            continue
        yield _candidate(case, rank, fetches, "input.synchronous-loader", 1.0 / _workers(case))


def too_few_workers(case: Case) -> Iterator[Candidate]:
    """A loader with workers that the training thread waits for in most steps."""
    for rank in case.ranks:
        fetches = _fetches(rank, _MULTI)
        begin, end, _ = rank.intervals(fetches)
        # Samples of the whole run know the workers as well.
        if not len(begin) or case.sampled(rank) is not None:
            continue
        spikes = _spikes(end - begin) & _may_restart(case, rank, begin, end - begin)
        if np.count_nonzero(~spikes) and (end - begin)[~spikes].sum() > 0:
            nodes = case.host_within(rank, begin[~spikes], end[~spikes]) & case.host_state(rank, HostState.INPUT)
            yield _waiting(case, rank, nodes, "input.too-few-workers")
        if spikes.any():
            nodes = case.host_within(rank, begin[spikes], end[spikes]) & case.host_state(rank, HostState.INPUT)
            yield _restart(case, rank, nodes, begin[spikes])


# With fewer fetches a long one among them says nothing of a rhythm.
_FEWEST_FETCHES: Final = 8
# Loaders seldom have more workers: long fetches that come more rarely are not theirs.
_MOST_WORKERS: Final = 8


def _may_restart(case: Case, rank: RankCase, begin: NDArray[np.int64], duration: NDArray[np.int64]) -> bool:
    """Whether long fetches can be new workers: enough were seen, workers are not kept, and the rhythm is not theirs.

    Workers that are all too slow deliver in bursts: every so many fetches, as many as there are workers, is long. The end
    of an epoch shows as a fetch more in a step, which brings nothing.
    """
    if len(duration) < _FEWEST_FETCHES:
        return False
    loaders = [loader for loader in case.facts.loaders if loader.get("workers")]
    if loaders and all(loader.get("persistent_workers") for loader in loaders):
        return False
    spikes = np.flatnonzero(_spikes(duration))
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), begin, side="right")
    if len(spikes) and all(step[spike] == step[spike - 1] for spike in spikes[spikes > 0].tolist()):
        return True
    if len(spikes) < 2:
        return True
    period = float(np.diff(spikes).mean())
    workers = [int(loader["workers"] or 0) for loader in loaders] or range(1, _MOST_WORKERS + 1)
    return not any(abs(period - count) < 1 for count in workers)


def _spikes(duration: np.ndarray) -> Mask:
    usual = float(np.median(duration))
    return (
        (duration > _SPIKE * usual) & (duration > _LEAST_SPIKE_NS)
        if len(duration) > 2
        else np.zeros(len(duration), np.bool_)
    )


def _workers(case: Case) -> int:
    cores = case.facts.cores
    return max(cores - 1, 1) if cores else _DEFAULT_WORKERS


def _candidate(case: Case, rank: RankCase, fetches: Mask, cause: str, share: float) -> Candidate:
    begin, end, _ = rank.intervals(fetches)
    nodes = case.host_within(rank, begin, end) & case.host_state(rank, HostState.INPUT)
    per_step = case.time_of(nodes)
    # Workers make batches while the step computes: what they cannot make in a step is still waited for.
    other = max(case.step_ns - per_step, 1)
    left = max(_LEFT_OF_FETCH, (per_step * share - other) / max(per_step, 1))
    return Candidate(
        cause=cause,
        attributed_ns=per_step,
        evidence=(
            facts.time("the training thread makes the batch itself, per step", per_step, case.events_of(nodes)),
            facts.share("of the step", per_step / max(case.step_ns, 1)),
        ),
        expected=case.without(nodes, left),
        ceiling=case.without(nodes),
        method=f"replay: batches made by {round(1 / share)} workers meanwhile",
        code=tuple(rank.code_of(_operator_rows(rank, fetches))),
        ranks=(rank.rank,),
        uncertainty=0.1,
        rivals=("host.python", "host.launch-bound", "host.sync", "input.too-few-workers"),
        hidden="batches are made on the training thread, but the device has work queued meanwhile: leave it",
    )


def _waiting(case: Case, rank: RankCase, nodes: Mask, cause: str) -> Candidate:
    per_step = case.time_of(nodes)
    return Candidate(
        cause=cause,
        attributed_ns=per_step,
        evidence=(
            facts.time("waiting for the loader's workers per step", per_step, case.events_of(nodes)),
            facts.share("of the step", per_step / max(case.step_ns, 1)),
        ),
        expected=case.without(nodes, _LEFT_OF_FETCH),
        ceiling=case.without(nodes),
        method="replay: batches ready when they are asked for",
        ranks=(rank.rank,),
        uncertainty=0.1,
        confidence=0.85,
        rivals=("input.synchronous-loader", "host.python", "host.sync"),
        missing=() if case.runs else ("the workers' CPU time (samples of a watched run)",),
        hidden="the training thread waits for its loader, but the device has work queued meanwhile: leave it",
    )


def _restart(case: Case, rank: RankCase, nodes: Mask, begin: NDArray[np.int64]) -> Candidate:
    per_step = case.time_of(nodes)
    return Candidate(
        cause="input.worker-restart",
        attributed_ns=per_step,
        evidence=(
            facts.time(
                "in fetches that took more than five times the usual one, per step", per_step, case.events_of(nodes)
            ),
        ),
        expected=case.without(nodes, _LEFT_OF_FETCH),
        ceiling=case.without(nodes),
        method="replay: workers kept alive from epoch to epoch",
        recurrence=recurrence(case, rank, begin),
        ranks=(rank.rank,),
        uncertainty=0.15,
        confidence=0.8,
        rivals=("input.too-few-workers", "host.gc", "host.python"),
        hidden=None,
    )


def _operator_rows(rank: RankCase, fetches: Mask) -> np.ndarray:
    first, last = rank.offsets["operators"]
    return np.flatnonzero(fetches[first:last])


RULES: Final = (
    Rule("input.synchronous-loader", ("trace",), synchronous_loader),
    Rule("input.too-few-workers", ("trace",), too_few_workers),
)
