"""Backward work whose gradients nothing reads before they are dropped, or at all.

A recording does not state the tensor of a gradient. Shapes identify it: the operator that adds a gradient has its
shape, and so have the operators of an optimizer's step. The kind of the addition shows whether a gradient existed
before: one that is handed over had been dropped, one that is added to had been kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.analysis.intervals import within
from whystall.diagnosis.detectors.heads import beyond_the_head
from whystall.diagnosis.detectors.surplus import beside_lost, tells_sizes
from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import first_size
from whystall.vocabulary.autograd import ACCUMULATE, EVALUATES

# Nodes between the gradients of a layer's weight and bias.
_WITHIN_LAYER: Final = ("AccumulateGrad", "TBackward0", "TransposeBackward0")
_TABLES: Final = ("EmbeddingBackward0", "EmbeddingBagBackward0")
_LINEAR: Final = ("AddmmBackward0", "MmBackward0")
_ADDS: Final = frozenset({"aten::add_", "aten::add"})
_CONVOLUTION: Final = "aten::convolution_backward"
_MAKE_WEIGHTS: Final = frozenset({"aten::mm", _CONVOLUTION})
# Between the operator that makes a gradient and the one that adds it are at most a transposition and a few views.
_NEAR: Final = 4
_WHOLE: Final = frozenset(
    {"long int", "long", "int", "short int", "short", "bool", "unsigned char", "signed char", "char"}
)
_ZEROS: Final = frozenset({"aten::zero_", "aten::_foreach_zero_"})
# Parameters, and the list that is applied to them.
_TWO_LISTS: Final = 2
# Within this many optimizer steps one would have read the gradients of all trained parameters.
_LEAST_STEPS: Final = 2
_LEAST_PASSES: Final = 3


@dataclass(frozen=True, slots=True)
class _Accumulated:
    """Gradients of one shape that one backward pass adds."""

    rows: NDArray[np.int64]
    begins_anew: bool
    begin_ns: int


def discarded_backward(rank: RankCase) -> NDArray[np.float64]:
    """The share of each operator that is left without gradients which are dropped before anything reads them.

    0 for backward work on such gradients alone, a half for a convolution's backward pass that makes a weight's dropped
    gradient beside the input's needed one, 1 for all others.
    """
    table = rank.trace.operators
    left: NDArray[np.float64] = np.ones(len(table))
    if table.is_empty() or table["input_dims"].null_count() == len(table):
        return left
    accumulates = matching(table["name"], lambda name: name == ACCUMULATE)
    if not accumulates.any():
        return left
    lost = np.zeros(len(table), np.bool_)
    steps = len(rank.optimizer_steps[0]) >= _LEAST_STEPS
    found = list(_by_shape(rank, accumulates, outside_of_autograd(rank) if steps else _arithmetic(rank)))
    if not steps:
        if not _of_inputs(found):
            return left
        found = [(passes, read) for passes, read in found if not len(read) and _piles_up(passes)]
    elif not any(len(read) for _, read in found) or not tells_sizes(rank):  # the optimizer's reads are unknown
        return left
    for rows in _unread(found):
        lost[rows] = True
    if steps:
        lost |= beyond_the_head(rank, accumulates, _pass_of(rank))
    if lost.any():
        lost |= beside_lost(rank, accumulates, lost, _pass_of(rank))
        lost |= _of_the_same_layer(rank, accumulates, lost)
        _leave_out_weights(rank, accumulates, lost, left)
        left[_only_for(rank, accumulates, lost, towers=steps)] = 0.0
    return left


def _unread(found: list[tuple[list[_Accumulated], NDArray[np.int64]]]) -> Iterator[NDArray[np.int64]]:
    """The additions of gradients, pass by pass and shape by shape, that nothing reads before they are dropped."""
    for passes, read in found:
        yield from (one.rows for one, used in zip(passes, _used(passes, read), strict=True) if not used)


def _piles_up(passes: list[_Accumulated]) -> bool:
    """Whether each pass adds to the gradients of a shape: nothing has dropped them."""
    return len(passes) >= _LEAST_PASSES and not any(one.begins_anew for one in passes)


def _of_inputs(found: list[tuple[list[_Accumulated], NDArray[np.int64]]]) -> bool:
    """Whether each pass computes gradients of inputs that are new for it, and something reads them.

    Forces, attacks, pictures: a job without an optimizer's step that needs gradients of inputs. Gradients that pile up
    beside them are no accumulation for a step outside of the recording.
    """
    count = max((len(passes) for passes, _ in found), default=0)
    return count >= _LEAST_PASSES and any(
        len(passes) == count and len(read) >= count and all(one.begins_anew for one in passes) for passes, read in found
    )


def _arithmetic(rank: RankCase) -> Mask:
    """Elementwise work outside of backward passes: a manual update is, even if autograd numbers it.

    While gradients are recorded, autograd numbers also operators that it will not differentiate.
    """
    engine = matching(rank.trace.operators["name"], lambda name: name.startswith(EVALUATES))
    work = rank.workings.work
    elementwise: Mask = (work.elementwise > 0) & (work.dense == 0)
    chosen: Mask = elementwise & ~rank.backward & ~rank.workings.tree.below(engine)
    return chosen


def _by_shape(
    rank: RankCase, accumulates: Mask, reading: Mask
) -> Iterator[tuple[list[_Accumulated], NDArray[np.int64]]]:
    """For each shape of gradients: the backward passes that make some, and when something reads or drops that shape."""
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    kept = _added_to(rank)
    of_pass = _pass_of(rank)
    other = np.flatnonzero(reading)
    dims = table["input_dims"].cast(str).fill_null("")
    texts = judged(table.select("input_types", "input_dims")[other], _of_numbers)
    of_any = _of_lists(rank)[other]
    rows_of_shape: dict[str, list[int]] = {}
    for row, text in zip(
        np.flatnonzero(accumulates).tolist(), dims.gather(np.flatnonzero(accumulates)).to_list(), strict=True
    ):
        rows_of_shape.setdefault(text[1:-1], []).append(row)
    for shape, found in rows_of_shape.items():
        rows = np.array(found)
        reads = of_any | np.array([not shape or shape in text for text in texts], np.bool_)
        read = np.sort(at[other[reads]])
        if _never_dropped(of_pass[rows], kept[rows]):
            yield _passes(rows[kept[rows]], of_pass, kept, at), read[:0]
            rows = rows[~kept[rows]]
        yield _passes(rows, of_pass, kept, at), read


def _added_to(rank: RankCase) -> Mask:
    """Which calls add something themselves: a gradient is added to one that is there."""
    table = rank.trace.operators
    parent = rows_of(table["parent"])
    adds = matching(table["name"], _ADDS.__contains__) & (parent >= 0)
    out = np.zeros(len(table), np.bool_)
    out[parent[adds]] = True
    return out


def _passes(
    rows: NDArray[np.int64], of_pass: NDArray[np.intp], kept: Mask, at: NDArray[np.int64]
) -> list[_Accumulated]:
    return [
        _Accumulated(chosen, not kept[chosen].any(), int(at[chosen].min()))
        for number in np.unique(of_pass[rows])
        for chosen in (rows[of_pass[rows] == number],)
    ]


def _never_dropped(of_pass: NDArray[np.intp], kept: Mask) -> bool:
    """Whether each pass adds to some gradients of a shape and hands over others, in the same numbers in every pass.

    An optimizer owns those that are handed over: it drops what it has read. The others belong to none.
    """
    numbers, place = np.unique(of_pass, return_inverse=True)
    added, anew = (np.bincount(place, weights=of, minlength=len(numbers)) for of in (kept, ~kept))
    alike = len(set(added.tolist())) == 1 and len(set(anew.tolist())) == 1
    return len(numbers) >= _LEAST_PASSES and alike and bool(added[0] > 0) and bool(anew[0] > 0)


def _used(passes: list[_Accumulated], read: NDArray[np.int64]) -> list[bool]:
    """Whether the gradients of each pass are read before they are dropped; those of the last may be read later."""
    if not len(read):
        return [False] * len(passes)
    out = [True]
    for one, after in zip(reversed(passes[:-1]), reversed(passes[1:]), strict=True):
        first = int(np.searchsorted(read, one.begin_ns))
        is_read = first < len(read) and read[first] < after.begin_ns
        out.append(bool(is_read) or (not after.begins_anew and out[-1]))
    return out[::-1]


def _of_lists(rank: RankCase) -> Mask:
    """Operators that may read any gradient: the shapes within a list of more than 30 tensors are not recorded.

    A single list, outside of optimizers' steps, is scaled or measured (clipped) and not used.
    """
    table = rank.trace.operators
    given = np.flatnonzero(table["input_types"].cast(str).fill_null("").str.contains("TensorList").to_numpy())
    lists = np.zeros(len(table), np.int64)
    lists[given] = judged(table.select("input_types", "input_dims")[given], _untold_lists)
    begin, end, _ = rank.optimizer_steps
    in_step = within(table["ts_ns"].to_numpy(), begin, end)
    return (lists >= _TWO_LISTS) | ((lists > 0) & in_step)


def _of_numbers(types: str | None, dims: str | None) -> str:
    """The sizes of a call's arguments, without integers and masks: they are no gradients.

    The labels of a batch may have the size of a narrow layer.
    """
    try:
        kinds, sizes = parse_json(types or "[]"), parse_json(dims or "[]")
    except ValueError:
        return dims or ""
    if len(kinds) != len(sizes) or not _WHOLE.intersection(one for one in kinds if isinstance(one, str)):
        return dims or ""
    kept = [size for kind, size in zip(kinds, sizes, strict=True) if kind not in _WHOLE]
    return json.dumps(kept) if ", " in (dims or "") else json.dumps(kept, separators=(",", ":"))


def _untold_lists(types: str | None, dims: str | None) -> int:
    """The number of a call's tensor lists without recorded shapes; if one has shapes, the others are empty."""
    try:
        given = zip(parse_json(types or "[]"), parse_json(dims or "[]"), strict=True)
        lists = [sizes for kind, sizes in given if kind == "TensorList"]
    except (ValueError, TypeError):
        return (types or "").count("TensorList")
    return 0 if any(lists) else len(lists)


def _pass_of(rank: RankCase) -> NDArray[np.intp]:
    """A number for each operator that all operators of one backward pass share: the number of earlier forward calls."""
    at = rank.trace.operators["ts_ns"].to_numpy()
    return np.searchsorted(np.sort(at[_numbered_forward(rank)]), at)


def _numbered_forward(rank: RankCase) -> Mask:
    """Operators of forward passes that autograd will differentiate, without recomputation in backward passes."""
    table = rank.trace.operators
    numbered: Mask = table["sequence"].fill_null(-1).to_numpy() >= 0
    engine = matching(table["name"], lambda name: name.startswith(EVALUATES))
    return numbered & ~rank.backward & ~rank.workings.tree.below(engine)


def outside_of_autograd(rank: RankCase) -> Mask:
    """Operators that neither autograd differentiates nor a backward pass calls: an optimizer's, and manual updates.

    Operators that fill gradients with zeros are none: they drop the old values.
    """
    table = rank.trace.operators
    numbered = table["sequence"].fill_null(-1).to_numpy() >= 0
    # An operator beside the addition of a gradient belongs to a hook: it may well be an optimizer.
    engine = matching(
        table["name"],
        lambda name: name == ACCUMULATE or (name.startswith(EVALUATES) and not name.endswith(ACCUMULATE)),
    )
    inside = rank.workings.tree.below(numbered | engine)
    zeros = matching(table["name"], _ZEROS.__contains__)
    outside: Mask = ~(numbered | engine | inside | zeros)
    return outside


def _only_for(rank: RankCase, accumulates: Mask, lost: Mask, *, towers: bool) -> Mask:
    """The engine's work for lost gradients alone: the rest of a chain after the first one.

    A chain begins where a loss hands on its gradient, a single number. If used gradients come later in it, the work
    before them is needed, unless it is a tower: its first layer hands on no gradient, and its gradients accumulate,
    since no optimizer drops them, while others begin from none. (Without an optimizer the gradients of inputs are used,
    and the whole model may depend on them: there are no ``towers``.)
    """
    table = rank.trace.operators
    tree = rank.workings.tree
    engine = matching(table["name"], lambda name: name.startswith(EVALUATES))
    at = table["ts_ns"].to_numpy()
    rows = np.flatnonzero(engine)
    rows = rows[np.argsort(at[rows], kind="stable")]
    caller = nearest_marked(tree.order, tree.parent, engine.astype(np.uint8))

    def calls_with(chosen: Mask) -> Mask:
        out = np.zeros(len(table), np.bool_)
        out[caller[chosen & (caller >= 0)]] = True
        return out[rows]

    number = (table["input_dims"].cast(str).fill_null("") == "[[]]").to_numpy()
    backward = rank.backward & ~engine
    is_lost, is_used = calls_with(lost), calls_with(accumulates & ~lost)
    of_pass = np.searchsorted(np.sort(at[_numbered_forward(rank)]), at[rows])
    begins = calls_with(number & backward) | (np.diff(of_pass, prepend=-1) != 0)
    out = np.zeros(len(table), np.bool_)
    ends = _hand_nothing_on(rank, caller)[rows]
    piled = calls_with(accumulates & _added_to(rank))
    towers = towers and bool(is_used.any()) and not piled[is_used].any()
    edges = [*np.flatnonzero(begins).tolist(), len(rows)]
    for first, last in pairwise(edges):
        used = first + np.flatnonzero(is_used[first:last])
        needed = int(used[-1]) + 1 if len(used) else first
        for after, until in pairwise([first, *(used + 1).tolist()]):
            own, last_end = after + np.flatnonzero(is_lost[after:until]), np.flatnonzero(ends[after:until])
            if towers and len(own) and piled[own].all() and len(last_end) and after + int(last_end[-1]) > own[0]:
                out[rows[_maker(after, int(own[0]), is_lost | is_used) : after + int(last_end[-1]) + 1]] = True
        hits = needed + np.flatnonzero(is_lost[needed:last])
        if len(hits):  # after the last gradient that is used nothing is needed any more
            begin = needed if len(used) else _maker(first, int(hits[0]), is_lost | is_used)
            out[rows[begin:last]] = True
    return out | tree.below(out)


def _hand_nothing_on(rank: RankCase, caller: NDArray[np.int32]) -> Mask:
    """The engine's nodes that make a gradient of a weight and none of the layer's input: a model's first layer."""
    table = rank.trace.operators
    products = np.flatnonzero(matching(table["name"], lambda name: name == "aten::mm") & (caller >= 0))
    count = np.bincount(caller[products], minlength=len(table))
    linear = matching(table["name"], lambda name: name.startswith(EVALUATES) and name.endswith(_LINEAR))
    tables = matching(table["name"], lambda name: name.startswith(EVALUATES) and name.endswith(_TABLES))
    ends: Mask = tables | (linear & (count == 1))
    return ends


def _of_the_same_layer(rank: RankCase, accumulates: Mask, lost: Mask) -> Mask:
    """The gradients of vectors (biases) that come with the gradient of a matrix that is lost.

    Many layers have biases of one length, and another network's optimizer reads it.
    """
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    nodes = matching(table["name"], lambda name: name.startswith(EVALUATES) and not name.endswith(_WITHIN_LAYER))
    rows = np.flatnonzero(accumulates)
    layer = np.searchsorted(np.sort(at[nodes]), at[rows])
    matrix = np.array([len(size) > 1 for size in judged(table.select("input_dims")[rows], first_size)], np.bool_)
    of_lost = np.isin(layer, layer[lost[rows] & matrix])
    also = np.zeros(len(table), np.bool_)
    also[rows[of_lost & ~matrix]] = True
    return also


def _leave_out_weights(rank: RankCase, accumulates: Mask, lost: Mask, left: NDArray[np.float64]) -> None:
    """Leaves out operators that make lost gradients of weights in calls that hand another gradient on."""
    table, tree = rank.trace.operators, rank.workings.tree
    engine = matching(table["name"], lambda name: name.startswith(EVALUATES))
    products = matching(table["name"], _MAKE_WEIGHTS.__contains__)
    sizes = dict(
        zip(
            np.flatnonzero(products | lost).tolist(),
            judged(table.select("name", "input_dims")[np.flatnonzero(products | lost)], _made_size),
            strict=True,
        )
    )
    caller = nearest_marked(tree.order, tree.parent, engine.astype(np.uint8))
    made_in: dict[int, list[int]] = {}
    for row in np.flatnonzero(products & (caller >= 0)).tolist():
        made_in.setdefault(int(caller[row]), []).append(row)
    at = table["ts_ns"].to_numpy()
    calls = np.flatnonzero(engine & ~_calls(caller, accumulates))
    calls = calls[np.argsort(at[calls], kind="stable")]
    out: list[int] = []
    for row in np.flatnonzero(lost).tolist():
        last = int(np.searchsorted(at[calls], at[row]))
        near = (made for call in calls[max(last - _NEAR, 0) : last][::-1].tolist() for made in made_in.get(call, ()))
        made = next((one for one in near if sizes[one] and sizes[one] == sizes[row]), None)
        if made is not None:
            out.append(made)
    halves = matching(table["name"], lambda name: name == _CONVOLUTION)
    for chosen, share in ((True, 0.5), (False, 0.0)):
        rows = np.array([row for row in out if halves[row] == chosen], np.int64)
        marked = np.zeros(len(table), np.bool_)
        marked[rows] = True
        left[marked | tree.below(marked)] = share


def _calls(caller: NDArray[np.int32], chosen: Mask) -> Mask:
    """Which rows call the chosen ones."""
    out = np.zeros(len(chosen), np.bool_)
    out[caller[chosen & (caller >= 0)]] = True
    return out


def _made_size(name: str, dims: str | None) -> tuple[int, ...]:
    """The sizes, in order, of the gradient of a weight that a call makes or adds; of a product either way round."""
    try:
        given = parse_json(dims or "")
        if name == "aten::mm":
            return tuple(sorted((int(given[0][0]), int(given[1][1]))))
        return tuple(sorted(int(size) for size in given[2 if name == _CONVOLUTION else 0]))
    except (ValueError, TypeError, IndexError):
        return ()


def _maker(first: int, hit: int, accumulates: Mask) -> int:
    """The call that made the gradient which ``hit`` adds: the one before that is no addition itself."""
    while hit > first and accumulates[hit]:
        hit -= 1
    return hit
