"""Weights that are kept in the host's memory and copied to the device for each use, and the hooks that do it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.around import climbed
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import distinct, matching
from whystall.trace.link import HOST_TABLES, is_module, rows_of
from whystall.vocabulary.copies import TO_DEVICE
from whystall.vocabulary.frames import frame_of
from whystall.vocabulary.python_work import work_of

_MOST_STEPS: Final = 0.8
"""The share of the steps that must copy: state that is saved or loaded occasionally is not needed in a step."""
_HOOKED: Final = "hooked"
_PIPELINES: Final = re.compile(r"(^|/)diffusers/")
_COPIES: Final = frozenset({"aten::to", "aten::_to_copy", "aten::copy_"})
"""Operators of torch around one copy."""


def copies_to_device(rank: RankCase) -> Mask:
    """Device events that copy from the host."""
    return rank.device_named(lambda name: any(part in name for part in TO_DEVICE))


def fetched_weights(rank: RankCase, *, many: float, least_bytes: float, sizes: float) -> Mask:
    """The copies to the device that fetch weights again and again.

    Those within hooks of offloading, or in most steps of inference ``many`` of them, which move ``least_bytes`` and
    come in at least this many ``sizes``, as matrices and biases do. Tiles of a volume, batches and blocks of a cache
    are of one size.
    """
    copies = copies_to_device(rank)
    hooked = copies & within_hooks(rank)[1]
    if in_most_steps(rank, hooked, least_bytes):
        return hooked
    several = copies & (_copies_in_step(rank, copies) >= many)
    if len(np.unique(rank.trace.device_events["bytes"].fill_null(0).to_numpy()[several])) < sizes:
        return several & False
    return several if not rank.trains and in_most_steps(rank, several, least_bytes) else several & False


def goes_back(rank: RankCase, fetches: Mask, to_host: Mask, *, least: float) -> bool:
    """Whether a share ``least`` of the fetched bytes goes back to the host in copies of the same sizes."""
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()
    came, went = Counter(size[fetches].tolist()), Counter(size[to_host].tolist())
    same = sum(one * min(count, went[one]) for one, count in came.items())
    return bool(same >= least * max(int(size[fetches].sum()), 1))


def steps_of(rank: RankCase) -> int:
    """The number of steps, at least 1."""
    return max(len(rank.trace.steps), 1)


def in_most_steps(rank: RankCase, copies: Mask, least_bytes: float) -> bool:
    """Whether most of at least three steps copy at least ``least_bytes``."""
    step = rows_of(rank.trace.device_events["step"])
    size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()
    chosen = copies & (step >= 0)
    moved = np.bincount(step[chosen], weights=size[chosen], minlength=steps_of(rank))
    return len(moved) > 2 and float(np.mean(moved >= least_bytes)) >= _MOST_STEPS


def _copies_in_step(rank: RankCase, copies: Mask) -> NDArray[np.int64]:
    """Per device event how many of the copies its step has; 0 outside of steps."""
    step = rows_of(rank.trace.device_events["step"])
    counts = np.bincount(step[copies & (step >= 0)], minlength=steps_of(rank))
    return np.where(step >= 0, counts[np.maximum(step, 0)], 0)


def work_for(case: Case, rank: RankCase, copies: Mask) -> Mask:
    """The host's nodes that only serve some copies: the calls of torch around them, and the hooks that ask for them."""
    table = rank.trace.operators
    operator = rows_of(rank.trace.device_events["operator"])[copies]
    at = np.unique(operator[operator >= 0]).astype(np.int64)
    parent, wraps = rows_of(table["parent"]), matching(table["name"], _COPIES.__contains__)
    while len(at):
        above = parent[at]
        outer = (above >= 0) & wraps[np.maximum(above, 0)]
        if not outer.any():
            break
        at = np.unique(np.where(outer, above, at))
    nodes = case.host_within_operators(rank, at)
    hooks, hooked = within_hooks(rank)
    return nodes | case.nodes(rank, host=hooks) if (hooked & copies).any() else nodes


def within_hooks(rank: RankCase) -> tuple[Mask, Mask]:
    """Which host events, and which device events, belong to hooks of offloading and not to a module's own forward."""
    frames = rank.trace.python_functions
    host = np.zeros(rank.offsets[HOST_TABLES[-1]][1], np.bool_)
    if frames.is_empty() or not rank.has_frames:
        return host, np.zeros(len(rank.trace.device_events), np.bool_)
    hooks = matching(frames["name"], lambda name: work_of(name) == _HOOKED)
    ends = is_module(frames["name"]) | matching(frames["name"], _is_forward)
    inside = climbed(np.arange(len(frames)), hooks, rows_of(frames["parent"]), last=ends) if hooks.any() else hooks
    inside = np.append(inside, np.False_)  # where there is no frame
    for table in ("operators", "runtime_calls"):
        first, last = rank.offsets[table]
        host[first:last] = inside[rows_of(getattr(rank.trace, table)["frame"])]
    first, last = rank.offsets["python_functions"]
    host[first:last] = inside[:-1]
    return host, inside[rows_of(rank.trace.device_events["frame"])]


def written_for(rank: RankCase, remedy: Remedy) -> Remedy:
    """A remedy whose change is written for pipelines of diffusers, with the change where one runs."""
    runs = any(_PIPELINES.search(name) for name in distinct(rank.trace.python_functions["name"]))
    return remedy if runs else structs.replace(remedy, patch=None)


def _is_forward(name: str) -> bool:
    frame = frame_of(name)
    return frame is not None and frame.symbol == "forward" and work_of(name) != _HOOKED
