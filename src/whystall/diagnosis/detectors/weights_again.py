"""Weights that are computed from parameters before each call of their layer, where nothing learns.

Weight norm has an operator of its own, torch's hooks have frames with known names, and Inductor names its kernels. A
form that is written out (spectral norm, a norm with a division) shows by sizes: right before a layer, its weight's
numbers are reduced, and then divided or multiplied.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import runs, within
from whystall.diagnosis.detectors.outer_calls import outer_calls
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import codes, distinct, judged, matching
from whystall.trace.recorded_sizes import Shape, sizes_by_argument

_WEIGHT_NORM: Final = "aten::_weight_norm"
_KERNELS: Final = re.compile(r"::weight_norm_fwd_|^triton_(?:poi|per|red)_fused__weight_norm(?:_interface)?_\d+$")
_HOOKS: Final = re.compile(
    r"\btorch[/\\]nn[/\\]utils[/\\](?:(?:weight_norm|spectral_norm)\.py\(\d+\): __call__"
    r"|parametrize\.py\(\d+\): get_(?:cached_)?parametri\w+)$"
)
_LAYERS: Final = re.compile(r"^aten::(?:conv|_conv|linear$|mm$|addmm$|matmul$|bmm$|baddbmm$|einsum$|lstm$|gru$|rnn_)")
_WEIGHTED: Final = re.compile(r"^aten::(?:conv|linear$)")
"""Layers whose second argument is a weight; that of a plain product may be an activation, such as keys."""
_VIEWS: Final = frozenset(
    f"aten::{name}"
    for name in ("reshape", "view", "flatten", "unflatten", "permute", "t", "transpose", "mT", "detach", "contiguous")
)
_REDUCTIONS: Final = frozenset(
    f"aten::{name}" for name in ("norm", "linalg_vector_norm", "norm_except_dim", "mv", "frobenius_norm")
)
_SCALES: Final = frozenset({"aten::div", "aten::div_", "aten::mul", "aten::mul_"})
_BETWEEN: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("clamp", "clamp_min", "clamp_min_", "clip", "add", "expand", "expand_as", "unsqueeze", "squeeze", "clone"),
        *("dot", "vdot", "copy_", "reciprocal", "to", "sqrt", "rsqrt", "resolve_conj"),
    )
)
_CASTS: Final = _VIEWS | {"aten::to", "aten::_to_copy", "aten::clone", "aten::copy_"}
_MOST_CALLS: Final = 32
_LEAST_LAYERS: Final = 2
"""Least number of layers in a step whose weights are normed in a form that is written out."""


@dataclass(frozen=True, slots=True)
class WeightsAgain:
    """When each computation of a weight begins and ends, by time.

    ``called`` and ``layer`` are when the call before it ended and the call behind it began: Python between these may be
    the hook's. ``kernels`` are device events known by name alone: a graph replays them, or compiled code launches them.
    ``count`` is how many weights were computed.
    """

    begin: Times
    end: Times
    called: Times
    layer: Times
    kernels: Mask
    count: int


def weights_again(rank: RankCase) -> WeightsAgain | None:
    """The weights that a recording without a backward pass computes from parameters; ``None`` where there are none."""
    if rank.trains:
        return None
    kernels = rank.device_named(lambda name: bool(_KERNELS.search(name)))
    normed = matching(rank.trace.operators["name"], _WEIGHT_NORM.__eq__)
    normed |= rank.workings.tree.below(normed)
    kernels &= ~rank.launched_by(normed)
    spans = _spans(rank)
    count = len(spans[0]) + int(kernels.sum())
    return WeightsAgain(*spans, kernels, count) if count else None


def _spans(rank: RankCase) -> tuple[Times, Times, Times, Times]:
    """Begin and end of each computation of a weight, and of the time between the calls around it."""
    table, calls = rank.trace.operators, outer_calls(rank)
    nothing = np.zeros(0, np.int64)
    if not len(calls):
        return nothing, nothing, nothing, nothing
    at = table["ts_ns"].to_numpy()[calls]
    until = at + table["duration_ns"].to_numpy()[calls]
    hook_begin, hook_end = _hooks(rank)
    of_weights = matching(table["name"], _WEIGHT_NORM.__eq__)[calls] | within(at, hook_begin, hook_end)
    by_sizes = _by_sizes(rank, calls)
    # One in each step may be an input: a template that is searched for, prototypes of classes.
    if len(runs(by_sizes)[0]) >= _LEAST_LAYERS * max(len(rank.trace.steps), 1):
        of_weights |= by_sizes
    first, until_place = runs(of_weights)
    last = until_place - 1
    behind = _behind(rank, calls, last)
    is_layer = matching(table["name"], lambda name: bool(_LAYERS.match(name)))[calls]
    used = (behind < len(calls)) & is_layer[np.minimum(behind, len(calls) - 1)]
    first, last = first[used], last[used]
    begin, end = _with_hooks(at[first], until[last], hook_begin, hook_end)
    called = np.where(first > 0, np.minimum(until[np.maximum(first - 1, 0)], begin), begin)
    return begin, end, called, np.maximum(at[np.minimum(last + 1, len(calls) - 1)], end)


def _hooks(rank: RankCase) -> tuple[Times, Times]:
    """When torch's own hooks compute weights, as recorded Python shows it."""
    begin, end, _ = rank.intervals(rank.host_named(lambda name: bool(_HOOKS.search(name)), ("python_functions",)))
    return begin, end


def _with_hooks(begin: Times, end: Times, hook_begin: Times, hook_end: Times) -> tuple[Times, Times]:
    """Computations, each extended to the whole of the hook in which it begins."""
    if not len(hook_begin):
        return begin, end
    place = np.maximum(np.searchsorted(hook_begin, begin, side="right") - 1, 0)
    inside = (hook_begin[place] <= begin) & (begin < hook_end[place])
    return np.where(inside, hook_begin[place], begin), np.where(inside, np.maximum(hook_end[place], end), end)


def _behind(rank: RankCase, calls: NDArray[np.intp], last: NDArray[np.intp]) -> NDArray[np.intp]:
    """The place of the first call behind each run that is more than a view or a cast."""
    works = np.flatnonzero(~matching(rank.trace.operators["name"], _CASTS.__contains__)[calls])
    place = np.searchsorted(works, last, side="right")
    return np.append(works, len(calls))[place].astype(np.intp)


def _by_sizes(rank: RankCase, calls: NDArray[np.intp]) -> Mask:
    """The calls that norm a weight right before its layer, by recorded sizes."""
    table, found = rank.trace.operators, np.zeros(len(calls), np.bool_)
    texts = np.array(distinct(table["name"]), object)
    names = texts[codes(table["name"])[calls]] if len(texts) else np.zeros(0, object)
    if not np.isin(names, list(_REDUCTIONS)).any():
        return found
    sizes = judged(table.select("input_dims")[calls], _first_two)
    for place in np.flatnonzero([bool(_WEIGHTED.match(name)) for name in names]).tolist():
        given, weight = sizes[place]
        if weight and prod(given) != prod(weight):
            first = _begin_of(names, sizes, place, prod(weight))
            found[first:place] = first < place
    return found


def _first_two(dims: str | None) -> tuple[Shape, Shape]:
    """The sizes of a call's first two arguments."""
    given = [*sizes_by_argument(dims)[:2], (), ()]
    return (given[0][0] if given[0] else ()), (given[1][0] if given[1] else ())


def _begin_of(names: NDArray[np.object_], sizes: list[tuple[Shape, Shape]], place: int, elements: int) -> int:
    """The place where the norm of a layer's weight begins; the layer's own place, if nothing norms the weight.

    The first call that computes with the weight's numbers reduces them, and the last divides or multiplies them: a
    weight that is first multiplied by something depends on that (a modulated convolution).
    """
    first, opens, scaled = place, "", False
    for at in range(place - 1, max(place - _MOST_CALLS, 0) - 1, -1):
        name, numbers = names[at], prod(sizes[at][0]) if sizes[at][0] else 0
        if name not in _VIEWS | _REDUCTIONS | _SCALES | _BETWEEN:
            break
        if numbers != elements:
            continue
        first = at
        if name not in _CASTS:
            opens = name
            scaled |= name in _SCALES
    return first if scaled and opens in _REDUCTIONS else place
