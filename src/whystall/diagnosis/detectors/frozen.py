"""Networks that run in each step of a training job and learn nothing: encoders of pictures and texts, teachers.

Autograd gives no call of such a pass a sequence number, and its layers are not those of the network that learns: the
sizes of their weights differ, or the recording names their modules, which no learning call belongs to (a reference
policy, a teacher of the same size). A pass of the network that learns, or of an average of its weights, makes something
new in each step.
Not meant are passes that are computed again in the backward pass (checkpointing first runs them without autograd),
products without activations (an algorithm that iterates, filters of a metric), and passes that generate tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.analysis.modules import module_places
from whystall.diagnosis.detectors.outer_calls import outer_calls, places_among
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, sizes_by_argument
from whystall.vocabulary.autograd import ENGINE
from whystall.vocabulary.compiled_code import EITHER

_WEIGHT_AT: Final = {"aten::mm": 1, "aten::addmm": 2, "aten::convolution": 1}
"""The place of the weight among the arguments of operators that a layer calls."""
_OF_NETWORKS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("relu", "relu_", "gelu", "silu", "silu_", "leaky_relu", "leaky_relu_", "elu", "tanh", "sigmoid", "hardswish"),
        *("layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "batch_norm", "rms_norm", "softmax"),
        *("scaled_dot_product_attention", "max_pool2d", "cudnn_batch_norm", "_softmax"),
    )
)
"""Activations, norms and attention: sums over filters and iterations of an algorithm have none."""
_DRAWS: Final = frozenset({"aten::argmax", "aten::multinomial", "aten::sort", "aten::topk"})
"""A pass that draws more than one token generates text, which is new in each step."""
_WRITES: Final = re.compile(r"^aten::(_foreach_)?(lerp|copy|mul|add|sub|addcmul)_?$")
"""Operators that average weights, or copy them from the network that learns."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """When passes of frozen networks begin and end, by time, and how many layers they have together."""

    begin: Times
    end: Times
    layers: int


def frozen_passes(rank: RankCase, *, least_layers: int, foreign: float, flat: float) -> Frozen | None:
    """The passes of at least ``least_layers``, of which a share of ``foreign`` has sizes that no learning layer has."""
    table = rank.trace.operators
    if not rank.trains or table.is_empty() or "sequence" not in table.columns:
        return None
    tree = rank.workings.tree
    learning = (table["sequence"].fill_null(-1).to_numpy() >= 0) | rank.backward
    learning |= matching(table["name"], lambda name: name.startswith(ENGINE))
    learning |= tree.below(learning)
    rows = np.flatnonzero(matching(table["name"], _WEIGHT_AT.__contains__))
    weights = judged(table.select("name", "input_dims")[rows], _weight)
    learnt = {weight for row, weight in zip(rows.tolist(), weights, strict=True) if weight and learning[row]}
    calls = outer_calls(rank)
    if not len(calls):
        return None
    place = places_among(rank, calls)
    used = np.array([bool(weight) for weight in weights], np.bool_) & ~learning[rows] & (place[rows] >= 0)
    rows, weights = rows[used], [weight for weight, one in zip(weights, used, strict=True) if one]
    first, last = _stretches(rank, calls, place, learning)

    def in_stretches(counted: NDArray[np.int64] | Mask) -> NDArray[np.int64]:
        total: NDArray[np.int64] = np.append(0, np.cumsum(counted))
        found: NDArray[np.int64] = total[last + 1] - total[first]
        return found

    active, draws = (matching(table["name"], named.__contains__)[calls] for named in (_OF_NETWORKS, _DRAWS))
    own = in_stretches(np.bincount(place[rows], minlength=len(calls)))
    chosen = (own >= least_layers) & (in_stretches(active) > 0) & (in_stretches(draws) <= 1)
    if not chosen.any():
        return None
    apart = np.array([weight not in learnt for weight in weights], np.bool_)
    apart |= _unchanged(rank, learning, place, rows, weights, flat)
    chosen &= in_stretches(np.bincount(place[rows[apart]], minlength=len(calls))) >= foreign * own
    if not chosen.any():
        return None
    at = table["ts_ns"].to_numpy()
    until = at + table["duration_ns"].to_numpy()
    return Frozen(at[calls[first[chosen]]], until[calls[last[chosen]]], int(own[chosen].sum()))


def _stretches(
    rank: RankCase, calls: NDArray[np.intp], place: NDArray[np.int64], learning: Mask
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first and last call of each stretch without autograd in a step, outside of optimizers."""
    at = rank.trace.operators["ts_ns"].to_numpy()
    learns = np.zeros(len(calls), np.bool_)
    learns[place[learning & (place >= 0)]] = True
    begin, end, _ = rank.optimizer_steps
    free = ~learns & ~within(at[calls], begin, end)
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), at[calls], side="right")
    # A backward pass may run on a thread of its own, between two calls.
    passes = np.searchsorted(np.sort(at[rank.backward]), at[calls])
    kind = np.stack([free, step, passes])
    changes = np.flatnonzero((np.diff(kind, axis=1) != 0).any(axis=0)) + 1
    first = np.append(0, changes)
    last = np.append(changes, len(calls)) - 1
    return first[free[first]], last[free[first]]


def _unchanged(
    rank: RankCase,
    learning: Mask,
    place: NDArray[np.int64],
    rows: NDArray[np.intp],
    weights: Sequence[Shape],
    flat: float,
) -> Mask:
    """Which layers belong to modules that never learn, where no tensor of their weights' sizes is written."""
    named = _of_other_modules(rank, learning)[rows]
    if not named.any():
        return named
    written = _written(rank, ~learning & (place >= 0))
    own = {weight for weight, one in zip(weights, named, strict=True) if one}
    kept = np.array([weight not in written for weight in weights], np.bool_)
    return named & kept & (not _is_kept_flat(own, written, flat))


def _of_other_modules(rank: RankCase, learning: Mask) -> Mask:
    """Operators in modules without any learning operator. There are none if the recording does not name modules.

    A module that each step makes has a new number each time. Compiled code hides the modules that learn.
    """
    table = rank.trace.operators
    places = module_places(rank.trace, rank.workings.tree)
    path = places.own_path
    if not places.modules.paths or matching(table["name"], lambda name: name.startswith(EITHER)).any():
        return np.zeros(len(path), np.bool_)
    learns = np.zeros(len(places.modules.paths), np.bool_)
    learns[path[learning & (path >= 0)]] = True
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), table["ts_ns"].to_numpy(), side="right")
    inside = path >= 0
    seen = np.unique(np.stack([path[inside].astype(np.int64), step[inside]]), axis=1)[0]
    again = np.bincount(seen, minlength=len(learns)) >= min(len(rank.trace.steps), 2)
    return inside & (~learns & again)[path] & learns.any()


def _written(rank: RankCase, outside: Mask) -> set[Shape]:
    """Sizes of tensors that are made or updated without autograd, outside of optimizers, as averages of weights are."""
    table = rank.trace.operators
    begin, end, _ = rank.optimizer_steps
    rows = np.flatnonzero(matching(table["name"], lambda name: _WRITES.search(name) is not None) & outside)
    rows = rows[~within(table["ts_ns"].to_numpy()[rows], begin, end)]
    found = judged(table.select("name", "input_dims")[rows], lambda _, dims: sizes_by_argument(dims)[:1])
    return {tuple(sorted(size)) for given in found for sizes in given for size in sizes}


def _is_kept_flat(weights: Iterable[Shape], written: set[Shape], least: float) -> bool:
    """Whether a tensor of one dimension is written that has a share ``least`` of all weights' elements."""
    whole = sum(prod(weight) for weight in weights)
    return any(len(size) == 1 and size[0] >= least * whole for size in written)


def _weight(name: str, dims: str | None) -> Shape:
    """The size of a layer's weight, sorted: the operator of a linear layer is given the transposed weight."""
    given = sizes_by_argument(dims)
    at = _WEIGHT_AT[name]
    return tuple(sorted(given[at][0])) if len(given) > at and len(given[at]) == 1 else ()
