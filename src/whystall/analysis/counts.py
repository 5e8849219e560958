"""How often things happen in a step: launches, kernels, synchronisations, bytes copied.

Unlike times, counts are the same on a busy machine and a quiet one, so that a gate on them needs no statistics. Host
events count for the step during which they began, on any thread; device events for the step that launched them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.hosts import CallKind, call_kind
from whystall.analysis.work_results import CountName, StepCount
from whystall.trace.columns import codes, distinct, matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.compiled_code import REGION

_CALL_KINDS: Final[dict[CountName, CallKind]] = {
    "launches": "launch",
    "graph_launches": "graph",
    "synchronizations": "sync",
    "allocator_calls": "allocator",
}
# A function that torch compiled runs as one region; a break in its graph makes two of them.

Counted = NDArray[np.int64]


def step_counts(trace: Trace, rank: int) -> list[StepCount]:
    """The counts of a trace with steps, by name; none where steps are not known."""
    if trace.steps.is_empty():
        return []
    counted = {**_of_host(trace), **_of_devices(trace)}
    return [_count(rank, name, each) for name, each in counted.items()]


def _count(rank: int, name: CountName, each: Counted) -> StepCount:
    usual = int(np.sort(each)[len(each) // 2])
    return StepCount(
        rank=rank,
        name=name,
        steps=len(each),
        usual=usual,
        alike=int(np.count_nonzero(each == usual)),
        least=int(each.min()),
        most=int(each.max()),
    )


def _of_host(trace: Trace) -> dict[CountName, Counted]:
    begin = trace.steps["ts_ns"].to_numpy()
    end = begin + trace.steps["duration_ns"].to_numpy()
    order = np.argsort(begin)

    def within(starts: NDArray[np.int64]) -> Counted:
        """How many of ``starts`` lie in each step."""
        at = np.searchsorted(begin[order], starts, side="right") - 1
        held = order[at[at >= 0]]
        return np.bincount(held[starts[at >= 0] < end[held]], minlength=len(begin))

    calls, operators, annotations = trace.runtime_calls, trace.operators, trace.annotations
    kinds = [call_kind(name) for name in distinct(calls["name"])]
    out: dict[CountName, Counted] = {}
    for name, kind in _CALL_KINDS.items():
        of_kind = np.isin(codes(calls["name"]), [code for code, each in enumerate(kinds) if each == kind])
        out[name] = within(calls["ts_ns"].to_numpy()[of_kind])
    out["operators"] = within(operators["ts_ns"].to_numpy())
    regions = [
        table["ts_ns"].to_numpy()[matching(table["name"], lambda name: name.startswith(REGION))]
        for table in (operators, annotations)
    ]
    out["compiled_regions"] = within(np.concatenate(regions))
    return out


def _of_devices(trace: Trace) -> dict[CountName, Counted]:
    events = trace.device_events
    step = rows_of(events["step"])
    size = events["bytes"].fill_null(0).to_numpy()
    copies, fills = ((events["kind"] == kind).to_numpy() for kind in ("memcpy", "memset"))

    def per_step(chosen: NDArray[np.bool_], weights: NDArray[np.int64] | None = None) -> Counted:
        held = chosen & (step >= 0)
        counted = np.bincount(step[held], None if weights is None else weights[held], minlength=len(trace.steps))
        return np.rint(counted).astype(np.int64)

    return {"kernels": per_step(~copies & ~fills), "copies": per_step(copies), "copied_bytes": per_step(copies, size)}
