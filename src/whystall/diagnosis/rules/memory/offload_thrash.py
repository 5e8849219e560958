"""State that is kept in the host's memory and copied to the device and back in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.copies import TO_DEVICE, TO_HOST, call_nodes, waits_of_copies
from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_LEAST_BYTES: Final = CAUSE.threshold("least_bytes")
_MANY_COPIES: Final = CAUSE.threshold("many_copies")
_MOST_STEPS: Final = 0.8
"""The share of the steps that must copy: state that is saved or loaded occasionally is not needed in a step."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """Large copies in both directions in each step of training, or the many of weights that are fetched one by one."""
    for rank in case.ranks:
        to_device = rank.device_named(lambda name: any(part in name for part in TO_DEVICE))
        to_host = rank.device_named(lambda name: any(part in name for part in TO_HOST))
        fetches = to_device & (_copies_in_step(rank, to_device) >= _MANY_COPIES)
        if rank.trains and _in_most_steps(rank, to_device) and _in_most_steps(rank, to_host):
            yield _kept_on_the_device(case, rank, to_device, to_host)
        elif not rank.trains and _in_most_steps(rank, fetches):
            yield _kept_on_the_device(case, rank, fetches, fetches & False)


def _steps(rank: RankCase) -> int:
    return max(len(rank.trace.steps), 1)


def _in_most_steps(rank: RankCase, copies: Mask) -> bool:
    """Whether most of at least three steps copy at least `_LEAST_BYTES`."""
    step = rows_of(rank.trace.device_events["step"])
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()
    chosen = copies & (step >= 0)
    moved = np.bincount(step[chosen], weights=size[chosen], minlength=_steps(rank))
    return len(moved) > 2 and float(np.mean(moved >= _LEAST_BYTES)) >= _MOST_STEPS


def _copies_in_step(rank: RankCase, copies: Mask) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Per device event how many of the copies its step has; 0 outside of steps."""
    step = rows_of(rank.trace.device_events["step"])
    counts = np.bincount(step[copies & (step >= 0)], minlength=_steps(rank))
    return np.where(step >= 0, counts[np.maximum(step, 0)], 0)


def _kept_on_the_device(case: Case, rank: RankCase, to_device: Mask, to_host: Mask) -> Replayed:
    graph = case.replayed
    copies = to_device | to_host
    nodes, calls = case.nodes(rank, device=copies), call_nodes(case, rank, copies)
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()
    seconds = max(float(durations(rank)[copies].sum()) / 1e9, 1e-9)
    per_step = case.time_of(nodes)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("copies between host and device", per_step, case.events_of(nodes), per=case.per),
            evidence.size("to the device", int(size[to_device].sum()) // _steps(rank), per=case.per),
            evidence.size("to the host", int(size[to_host].sum()) // _steps(rank), per=case.per),
            evidence.bandwidth("their bandwidth", float(size[copies].sum()) / seconds),
        ),
        removal=Change(
            duration=np.where(nodes | calls, 0, graph.duration), removed_edges=waits_of_copies(case, rank, copies)
        ),
        method="replay: nothing waits for these copies",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        # The host's work on the state (an optimizer on the CPU) stays, and copies that overlap slow others.
        uncertainty=0.4,
        confidence=0.85 if to_host.any() else 0.75,
        rivals=("host.pageable-copy", "host.sync"),
        if_hidden="state goes between host and device in every step, and compute hides it: leave it",
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls", "steps")),))
