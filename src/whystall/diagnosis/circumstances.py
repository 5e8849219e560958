"""Circumstances of a remedy: the library that runs the loop, whether anything learns, present uses of graphs.

A cause's entry may hold a remedy for a circumstance (`[remedies.when_serving]`). The first circumstance that holds and
that the entry has a remedy for goes before the general one.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import structs

from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import Cause
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import distinct, matching
from whystall.trace.link import rows_of
from whystall.vocabulary.compiled_code import EITHER
from whystall.vocabulary.job_kinds import JobKind, kinds_told_by
from whystall.vocabulary.runtime_calls import is_call

# Where graphs launch at least this share of the device's time, launching by graphs is no advice.
_MOSTLY: Final = 0.5
# With less than this share of a step's launches between two waits of the host, launching by graphs is no advice either.
_WAITS_SPLIT: Final = 0.5
_INSIDE: Final = frozenset({"aten::mm", "aten::addmm", "aten::convolution"})
"""Operators that torch calls inside a layer."""
_COMPILES: Final = re.compile(r"^model = torch\.compile\(model\)")
_AROUND: Final = (
    "Parts of the job are compiled already: this is about the code around them, and about the breaks between them "
    "(TORCH_LOGS=graph_breaks names these)."
)
_NAMED: Final = ("annotations", "operators", "python_functions")


def circumstances(case: Case) -> tuple[str, ...]:
    """The circumstances that hold, the most specific first."""
    key = ("circumstances", -1)
    if key not in case.kept:
        case.kept[key] = _circumstances(case)
    found: tuple[str, ...] = case.kept[key]
    return found


def _circumstances(case: Case) -> tuple[str, ...]:
    if not case.ranks:
        return ()
    kinds: set[JobKind] = set()
    for rank in case.ranks:
        for table in _NAMED:
            kinds |= kinds_told_by(distinct(getattr(rank.trace, table)["name"]))
    trains = any(rank.trains or len(rank.optimizer_steps[0]) for rank in case.ranks) or bool(case.runs)
    holds = {
        "when_one_sample": all(is_given_one_sample(rank) for rank in case.ranks),
        "when_graphs": any(_by_graphs(rank) for rank in case.ranks),
        "when_serving": "serving" in kinds and not trains,
        "when_waits": any(_waits_split_launches(rank) for rank in case.ranks),
        "when_sharded": "sharded" in kinds,
        "when_inference": not trains,
        "when_not_replicated": "replicated" not in kinds and not case.runs,
    }
    return tuple(name for name, true in holds.items() if true)


def fitting(cause: Cause, holds: tuple[str, ...]) -> Remedy:
    """The remedy of a cause's entry that fits the circumstances."""
    special = next((cause.remedies[one] for one in holds if one in cause.remedies), None)
    return special or Remedy(text=cause.remedy, patch=cause.patch, risk=cause.risk)


def beside_compiled(case: Case, remedy: Remedy) -> Remedy:
    """A remedy in a job with compiled parts: to compile the model is none."""
    if not _COMPILES.match(remedy.patch or "") or not _has_compiled_parts(case):
        return remedy
    return structs.replace(remedy, text=f"{remedy.text} {_AROUND}", patch=None)


def _has_compiled_parts(case: Case) -> bool:
    tables = (getattr(rank.trace, table) for rank in case.ranks for table in _NAMED)
    return any(name.startswith(EITHER) for table in tables for name in distinct(table["name"]))


def is_given_one_sample(rank: RankCase) -> bool:
    """Whether the job does not train, and the inputs of its layers have a first dimension of one.

    Operators inside a layer may flatten samples and positions into one dimension, so they count only without layers.
    """
    learns = rank.trains or len(rank.optimizer_steps[0])
    given = rank.analysis.given
    layers = [row.rows for row in given if row.operator not in _INSIDE] or [row.rows for row in given]
    return bool(layers) and not learns and set(layers) == {1}


def _waits_split_launches(rank: RankCase) -> bool:
    """Whether waits of the host leave less than half of a usual step's launches between two of them.

    Only launches of a thread that waits count: a backward pass on a thread of its own may be in one piece.
    """
    calls, steps = rank.trace.runtime_calls, rank.trace.steps
    waiting = matching(calls["name"], lambda name: is_call(name, "sync"))
    waits = np.sort(calls["ts_ns"].to_numpy()[waiting])
    launch = rows_of(rank.trace.device_events["launch"])
    launch = launch[launch >= 0]
    threads = calls["thread"].to_numpy()
    launches = np.unique(calls["ts_ns"].to_numpy()[launch[np.isin(threads[launch], threads[waiting])]])
    if not len(waits) or not len(launches):
        return False
    begin = np.sort(steps["ts_ns"].to_numpy()) if len(steps) else launches[:1]
    step, part = (np.searchsorted(edges, launches, side="right") for edges in (begin, waits))
    _, step = np.unique(step, return_inverse=True)
    whole = np.bincount(step)
    (pairs, count) = np.unique(np.stack([step, part]), axis=1, return_counts=True)
    largest = np.zeros(len(whole), np.int64)
    np.maximum.at(largest, pairs[0], count)
    return float(np.median(largest / whole)) < _WAITS_SPLIT


def _by_graphs(rank: RankCase) -> bool:
    events = rank.trace.device_events
    calls = matching(rank.trace.runtime_calls["name"], lambda name: is_call(name, "graph"))
    if events.is_empty() or not calls.any():
        return False
    launch, took = rows_of(events["launch"]), events["duration_ns"].to_numpy()
    return float(took[np.append(calls, np.False_)[launch]].sum()) >= _MOSTLY * float(took.sum())
