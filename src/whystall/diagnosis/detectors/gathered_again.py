"""Parameters that are gathered for the forward pass, given back, and gathered again for the backward pass.

FSDP marks its gathers. DeepSpeed (ZeRO-3) marks the passes of modules alone: there a group shares parameters if its
forward passes gather and reduce nothing. Groups that share activations do both in either pass.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis.detectors.collectives import Collectives, are, launched_ns, step_of
from whystall.diagnosis.rank_case import RankCase

_GATHER: Final = re.compile(r"^_?all_?gather", re.IGNORECASE)
_SUM: Final = re.compile(r"reduce_?scatter|^all_?reduce", re.IGNORECASE)
_OF_ZERO: Final = re.compile(r"P(re|ost)BackwardFunction|deepspeed/runtime/zero/")
_MARK: Final = re.compile(r"^FSDP::|^FullyShardedDataParallel")


def is_of_zero(rank: RankCase) -> bool:
    """Whether DeepSpeed shares the parameters: its functions around modules are recorded."""
    return bool(rank.host_named(_OF_ZERO.search, ("operators", "annotations", "python_functions")).any())


def gathered_again(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], float]:
    """The gathers of a step's backward pass that its forward pass made, too, by their sizes, and their bytes."""
    out = np.zeros(len(found.node), np.bool_)
    begin, end, _ = rank.intervals(rank.host_named(lambda name: bool(_MARK.match(name)), ("annotations",)))
    if not rank.trains or (not len(begin) and not is_of_zero(rank)):
        return out, 0.0
    launched, step = launched_ns(rank, found), step_of(rank, found)
    gathers = are(found, _GATHER) & (found.size > 0) & (step >= 0)
    if len(begin):
        gathers &= within(launched, begin, end)
    else:
        gathers &= np.isin(np.array(found.group, object), _of_parameters(rank, found, launched, step))
    if not gathers.any():
        return out, 0.0
    at = rank.trace.operators["ts_ns"].to_numpy()
    order = np.argsort(at, kind="stable")
    at = at[order]
    backward = at[rank.backward[order]]
    forward = at[~rank.backward[order] & ~within(at, begin, end)]
    starts = np.append(rank.trace.steps["ts_ns"].to_numpy(), np.iinfo(np.int64).max)
    bytes_of = []
    for number in np.unique(step[gathers]).tolist():
        first = int(np.searchsorted(backward, starts[number]))
        if first == len(backward) or backward[first] >= starts[number + 1]:
            continue
        # The first gather for the backward pass comes between the two passes.
        ahead = int(np.searchsorted(forward, backward[first])) - 1
        until = forward[ahead] if ahead >= 0 and forward[ahead] >= starts[number] else backward[first]
        rows = np.flatnonzero(gathers & (step == number))
        late = launched[rows] >= until
        sizes = Counter(found.size[rows[~late]].tolist())
        repeated = []
        for row in rows[late].tolist():
            size = int(found.size[row])
            if sizes[size] > 0:
                sizes[size] -= 1
                repeated.append(row)
        out[repeated] = True
        bytes_of.append(int(found.size[repeated].sum()))
    return out, float(np.median(bytes_of)) if bytes_of else 0.0


def _of_parameters(
    rank: RankCase, found: Collectives, launched: NDArray[np.int64], step: NDArray[np.int64]
) -> list[str]:
    """The groups that gather in forward passes, reduce in backward passes, and never the other way round."""
    begin, end, _ = rank.optimizer_steps
    inside = (step >= 0) & ~within(launched, begin, end)
    at = rank.trace.operators["ts_ns"].to_numpy()
    backward = np.sort(at[rank.backward])
    starts = np.append(rank.trace.steps["ts_ns"].to_numpy(), np.iinfo(np.int64).max)
    first = np.append(backward, np.iinfo(np.int64).max)[np.searchsorted(backward, starts[:-1])]
    ahead = inside & (launched < first[np.maximum(step, 0)])
    group = np.array(found.group, object)
    gathers, sums = are(found, _GATHER), are(found, _SUM)
    sharing = set(group[inside & gathers & ahead]) & set(group[inside & sums & ~ahead])
    return sorted(sharing - set(group[inside & sums & ahead]))
