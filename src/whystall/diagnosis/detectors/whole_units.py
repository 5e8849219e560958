"""Parameters that are gathered in one unit, or in very few, so that no compute is left to hide the transfer.

A step shows it: the group's first gather comes before all compute, its last scatter after the whole backward pass, and
few gathers lie between. With a unit for each layer the compute of other layers hides all but the first unit of a pass,
if the compute lasts long enough; and parameters are gathered again for the backward pass.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of, is_backward
from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import Collectives, are, step_of, transfer_ns
from whystall.diagnosis.detectors.prefixes import products
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import distinct, matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import first_size

_GATHER: Final = re.compile(r"all_?gather", re.IGNORECASE)
_SCATTER: Final = re.compile(r"reduce_?scatter", re.IGNORECASE)
_OF_OPTIMIZERS: Final = "optimizer steps"
_SHARDED: Final = re.compile(r"FSDP|FullyShardedDataParallel|fsdp::|PartitionedParameter|fetch_sub_module")
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """The most units, the fewest layers, and the share of the parameters in the first unit where it is not known.

    ``large`` is the share of the largest message from which another is a unit, ``bytes`` the share of a step's bytes
    that units must bring; ``hidden`` the share of a collective
    beside compute from which it counts as hidden; ``outside`` the share of a step's compute that may precede its
    first gather, and of its backward pass that may follow its last scatter.
    """

    units: int
    layers: int
    first: float
    large: float
    bytes: float
    hidden: float
    outside: float


@dataclass(frozen=True, slots=True)
class Layers:
    """The number of layers, and the share of the parameters in what is gathered before the first can compute."""

    count: int
    first: float


@dataclass(frozen=True, slots=True)
class WholeUnits:
    """The collectives of a rank's whole units, the share of each that a unit per layer leaves, and gathers per step."""

    chosen: Mask
    stays: NDArray[np.float64]
    units: float
    layers: Layers


@dataclass(frozen=True, slots=True)
class _Computes:
    """The compute of a rank's devices: begin, end, step, and what is of the backward pass."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    step: NDArray[np.int64]
    backward: Mask

    def within(self, begin: int, end: int, *, chosen: Mask) -> int:
        """The time of chosen compute in an interval, ns."""
        own = np.minimum(self.end[chosen], end) - np.maximum(self.begin[chosen], begin)
        return int(np.maximum(own, 0).sum())


def whole_units(case: Case, rank: RankCase, found: Collectives, limits: Limits) -> WholeUnits | None:
    """The units of a rank in most of its steps; ``None`` where there are none, or where there are no layers to wrap."""
    if not rank.on_device or not rank.trains or found.row is None or not _gathers_for_a_pass(rank):
        return None
    step, computes, took = step_of(rank, found), _computes(rank), transfer_ns(case)
    gathers, scatters = (are(found, kind) & (found.node >= 0) & (step >= 0) for kind in (_GATHER, _SCATTER))
    layers = _layers(rank, limits)
    if layers is None:
        return None
    stays, chosen, units, seen = np.ones(len(step)), np.zeros(len(step), np.bool_), [], 0
    group = np.array(found.group)
    for name in sorted(set(group[scatters].tolist())):
        of_group = group == name
        for number in np.unique(step[of_group & scatters]).tolist():
            mine = of_group & (step == number)
            parts = (_large(found, gathers & mine, limits.large), _large(found, scatters & mine, limits.large))
            seen += len(parts[0]) > 0
            size = np.maximum(found.size, 0)
            # An embedding's message may outweigh those of many layers.
            if size[parts[0]].sum() < limits.bytes * size[gathers & mine].sum():
                continue
            if _is_whole(found, computes, rank, parts, number, limits):
                _left(stays, found, computes, number, parts, took, layers)
                chosen[np.concatenate(parts)] = True
                units.append(len(parts[0]))
    if not units or len(units) < _MOSTLY * seen:
        return None
    return WholeUnits(chosen, stays, float(np.median(units)), layers)


def _gathers_for_a_pass(rank: RankCase) -> bool:
    """Whether a gather at the beginning of a step belongs to the forward pass.

    Where steps begin after the optimizer's, it may be the optimizer's: ZeRO-1 and ZeRO-2 gather updated parameters.
    """
    if not (rank.trace.steps_from or "").startswith(_OF_OPTIMIZERS):
        return True
    names = [*distinct(rank.trace.annotations["name"]), *distinct(rank.trace.operators["name"])]
    return any(map(_SHARDED.search, names))


def _large(found: Collectives, chosen: Mask, large: float) -> NDArray[np.intp]:
    """The chosen collectives by start, without small ones; all where no size is known."""
    rows = np.flatnonzero(chosen)
    size = found.size[rows]
    rows = rows[size >= large * size.max(initial=0)]
    ordered: NDArray[np.intp] = rows[np.argsort(found.start[rows], kind="stable")]
    return ordered


def _computes(rank: RankCase) -> _Computes:
    events = rank.trace.device_events
    own = rank.workings.classified.class_of == COMPUTE
    operator = rows_of(events["operator"])
    begin = events["ts_ns"].to_numpy()
    step = events["step"].fill_null(-1).to_numpy().astype(np.int64)
    backward = np.append(_of_backward(rank), np.False_)[operator]
    return _Computes(begin[own], (begin + events["duration_ns"].to_numpy())[own], step[own], backward[own])


def _of_backward(rank: RankCase) -> Mask:
    """Which operators run in backward passes."""
    tree = rank.workings.tree
    return is_backward(tree, forward_operator_of(rank.trace, tree))


def _is_whole(
    found: Collectives,
    computes: _Computes,
    rank: RankCase,
    parts: tuple[NDArray[np.intp], NDArray[np.intp]],
    number: int,
    limits: Limits,
) -> bool:
    """Whether a step's first gather comes before its compute and its last scatter after its backward pass.

    And nothing hides these two.
    """
    gathers, scatters = parts
    if not (0 < len(gathers) <= 2 * limits.units and 0 < len(scatters) <= limits.units) or found.row is None:
        return False
    first, last = int(gathers[0]), int(scatters[-1])
    lasts = rank.trace.device_events["duration_ns"].to_numpy()[found.row]
    begin, end = found.start, found.start + lasts
    every = np.ones(len(computes.begin), np.bool_)
    own = computes.step == number
    back = own & computes.backward
    whole = int((computes.end - computes.begin)[own].sum())
    passes = int((computes.end - computes.begin)[back].sum())
    if not whole or not passes:
        return False
    early = computes.within(np.iinfo(np.int64).min, int(end[first]), chosen=own)
    late = computes.within(int(begin[last]), np.iinfo(np.int64).max, chosen=back)
    bare = all(
        computes.within(int(begin[row]), int(end[row]), chosen=every) < limits.hidden * lasts[row]
        for row in (first, last)
    )
    return bare and early <= limits.outside * whole and late <= limits.outside * passes


def _left(
    stays: NDArray[np.float64],
    found: Collectives,
    computes: _Computes,
    number: int,
    parts: tuple[NDArray[np.intp], NDArray[np.intp]],
    took: NDArray[np.int64],
    layers: Layers,
) -> None:
    """Sets the share of a step's gathers and scatters that is left with a unit for each layer."""
    gathers, scatters = parts
    back = (computes.step == number) & computes.backward
    begins = int(computes.begin[back].min())
    ahead = found.start[gathers] < begins
    forward = (computes.step == number) & ~computes.backward & (computes.begin < begins)
    lasts = computes.end - computes.begin
    hides = 1 - 1 / layers.count
    lasting = took[found.node]
    gathered = int(lasting[gathers[ahead]].sum())
    again = int(lasting[gathers[~ahead]].sum())
    scattered = int(lasting[scatters].sum())
    left = max(layers.first * gathered, gathered - int(lasts[forward].sum()) * hides)
    _spread(stays, gathers[ahead], lasting, left)
    # Where layers are units, their parameters are gathered again for the backward pass.
    needed = scattered + max(again, gathered)
    left = max(layers.first * scattered, needed - int(lasts[back].sum()) * hides)
    _spread(stays, np.concatenate([gathers[~ahead], scatters])[::-1], lasting, left)


def _spread(stays: NDArray[np.float64], rows: NDArray[np.intp], lasting: NDArray[np.int64], left: float) -> None:
    """Assigns the time that is left to the first transfers, then to the next ones."""
    before = np.append(0, np.cumsum(lasting[rows]))[:-1]
    stays[rows] = np.clip((left - before) / np.maximum(lasting[rows], 1), 0.0, 1.0)


def _layers(rank: RankCase, limits: Limits) -> Layers | None:
    """The layers, by the sizes of the weights that forward passes multiply; ``None`` where none repeat.

    Embeddings and heads are no part of a layer, and are gathered before the first one computes.
    """
    found = products(rank, differentiated=True)
    passes = max(len(rank.trace.steps), 1)
    counts = Counter(map(tuple, found.size[~_of_backward(rank)[found.operator], 1:].tolist()))
    if not counts:
        return Layers(max(limits.layers, round(1 / limits.first)), limits.first)
    per_pass = {size: count / passes for size, count in counts.items()}
    repeated = {size: count for size, count in per_pass.items() if count >= limits.layers}
    inside = sum(prod(size) * count for size, count in repeated.items())
    outside = sum(prod(size) * count for size, count in per_pass.items() if size not in repeated) + _embedded(rank)
    if not repeated or inside < _MOSTLY * outside:
        return None
    count = int(min(repeated.values()))
    return Layers(count, (outside + inside / count) / (outside + inside))


def _embedded(rank: RankCase) -> int:
    """The elements of the tables that embeddings are taken from."""
    table = rank.trace.operators
    taken = matching(table["name"], lambda name: name == "aten::embedding")
    return sum(prod(first_size(dims)) for dims in set(table["input_dims"].cast(str).to_numpy()[taken].tolist()) if dims)
