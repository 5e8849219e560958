"""The graph of values of a recording that names no tensors: a call reads the last values of its arguments' shapes.

A value is looked up by shape, dtype and strides, then without strides, and without dtype where one is not recorded. A
call with several tensors of one shape reads one value for each, the oldest first, and a product of two square matrices
reads one of them twice. If a call's result does not follow from its arguments, it produced the next value read whose
producer is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of, is_backward
from whystall.analysis.dataflow.graph import NEAR, Dataflow, Numbers
from whystall.analysis.hosts import backward_threads, training_thread
from whystall.analysis.operators import OperatorTree
from whystall.analysis.work import Call, OperatorWork
from whystall.cost import kind_of
from whystall.cost.compiled import is_fused
from whystall.cost.recorded import UNKNOWN_DTYPE
from whystall.cost.registry import base_name
from whystall.cost.shapes import dense, is_view
from whystall.cost.spec import TensorSpec
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

CONFIDENCE: Final = 0.85
"""How often such a link is right, as a prior of the findings that stand on it."""

# Operators of these kinds count by their calls, or by their views.
_TAKEN_APART: Final = (None, "view", "composite", "communication")
_INDEXES: Final = frozenset({"aten::index", "aten::_unsafe_index"})
# Operators that may return more elements than they receive.
_ENLARGE: Final = ("repeat", "upsample", "constant_pad", "reflection_pad", "replication_pad", "im2col", "index")
# Number of reads to search for the result of a call with unknown shape.
_MOST_READS: Final = 256


def by_shape(trace: Trace, tree: OperatorTree, work: OperatorWork) -> Dataflow:
    """The graph of a trace whose calls have their shapes; calls without are left out."""
    rows = _nodes(trace, tree, work)
    at, thread = (trace.operators[column].to_numpy() for column in ("ts_ns", "thread"))
    of_thread = _group_of_thread(trace)
    group = of_thread[thread[rows]]
    order = np.lexsort((at[rows], group))
    rows, group = rows[order], group[order]
    # A step's values are seldom read in the next one: parameters come from outside of both.
    step = np.searchsorted(np.sort(trace.steps["ts_ns"].to_numpy()), at[rows], side="right")
    group = group * (len(trace.steps) + 1) + step
    backward = is_backward(tree, forward_operator_of(trace, tree))[rows]
    ran = Ran(
        rows, work.recorded_of[rows].astype(np.int64), work.calls, group, backward, _blind(trace, tree, rows, of_thread)
    )
    return linked(ran, _restrided(tree, work, ran))


@dataclass(frozen=True, slots=True)
class Ran:
    """The calls that ran, in their order: values are looked up among those of the same ``group``.

    ``blind`` are the calls before which work ran whose tensors are not recorded (`Dataflow`).
    """

    rows: Numbers
    call_of: Numbers
    calls: list[Call]
    group: Numbers
    backward: NDArray[np.bool_]
    blind: Numbers


def linked(ran: Ran, returned: Mapping[int, TensorSpec]) -> Dataflow:
    """The graph of the calls; ``returned`` are results of nodes that do not follow from their calls' arguments."""
    specs: dict[TensorSpec, int] = {}
    used = set(np.unique(ran.call_of).tolist())
    calls = [call if place in used else None for place, call in enumerate(ran.calls)]
    read_by, read_spec = _spread([[_number(specs, one) for one in call.given] if call else [] for call in calls], ran)
    made_by, made_spec = _spread(
        [[_number(specs, one) for one in call.returned or ()] if call else [] for call in calls], ran
    )
    made_by = np.concatenate([made_by, np.array(list(returned), np.int64)])
    more = np.array([_number(specs, one) for one in returned.values()], np.int64)
    made_spec = np.concatenate([made_spec, more])
    found = np.full(len(read_by), -1, np.int64)
    squares = np.array([bool(call and call.cost and call.cost.kind == "matrix") for call in calls], np.bool_)
    twice = squares[ran.call_of][read_by] if len(squares) else np.zeros(0, np.bool_)
    exact = np.arange(len(specs), dtype=np.int64)
    for reading, making in (exact, exact), *_looser_keys(list(specs)):
        key = reading[read_spec]
        back = np.where(twice, 0, _from_the_last(read_by * (int(key.max(initial=0)) + 1) + key))
        missing = np.flatnonzero(found < 0)
        reads = (read_by[missing], key[missing])
        found[missing] = _last(ran.group, reads, (made_by, making[made_spec]), back[missing])
    guesses = _Guesses(ran, read_by, read_spec, found, list(specs))
    more_by: list[int] = []
    more_spec: list[int] = []
    for node, after in pairwise([*_without_result(ran, returned), len(ran.rows)]):
        reads_of_it = guesses.reads_behind(node)
        if reads_of_it:
            if read_by[reads_of_it[0]] > after and ran.call_of[after] == ran.call_of[node]:
                del reads_of_it[1:]  # the others are reads of the same call's results right behind this one
            found[reads_of_it] = len(made_by) + len(more_by)
            more_by.append(node)
            more_spec.append(int(read_spec[reads_of_it[0]]))
    made_by = np.concatenate([made_by, np.array(more_by, np.int64)])
    made_spec = np.concatenate([made_spec, np.array(more_spec, np.int64)])
    outside = found < 0
    first, place = np.unique(read_spec[outside], return_inverse=True)
    found[outside] = len(made_by) + place.reshape(-1)
    return Dataflow(
        rows=ran.rows,
        call_of=ran.call_of,
        calls=ran.calls,
        backward=ran.backward,
        made_by=np.concatenate([made_by, np.full(len(first), -1, np.int64)]),
        specs=list(specs),
        spec_of=np.concatenate([made_spec, first]),
        read_by=read_by,
        read=found,
        confidence=CONFIDENCE,
        blind=ran.blind,
    )


def _nodes(trace: Trace, tree: OperatorTree, work: OperatorWork) -> Numbers:
    """Rows of counted calls and views, the outermost ones, and of others that contain none."""
    recorded = work.recorded_of >= 0
    names = trace.operators["name"]
    viewing = matching(names, is_view) & recorded
    if viewing.any():
        viewing &= np.array([call.returned is not None for call in work.calls], np.bool_)[work.recorded_of]
    marked = work.counted | viewing | (matching(names, lambda name: kind_of(name) not in _TAKEN_APART) & recorded)
    leaf = np.ones(len(tree.parent), np.bool_)
    leaf[np.unique(tree.parent[tree.parent >= 0])] = False
    return np.flatnonzero(recorded & ~tree.below(marked) & (marked | leaf)).astype(np.int64)


def _blind(trace: Trace, tree: OperatorTree, rows: Numbers, of_thread: Numbers) -> Numbers:
    """The nodes before which a stream of theirs was given kernels of unknown effect: compiled or hand-written ones.

    A fused kernel of Inductor's may write into any tensor that it is given.
    """
    events = trace.device_events
    if events.is_empty() or not len(rows):
        return np.zeros(0, np.int64)
    nodes = np.zeros(len(tree.parent), np.bool_)
    nodes[rows] = ~matching(trace.operators["name"], is_fused)[rows]
    operator, launch = rows_of(events["operator"]), rows_of(events["launch"])
    covered = (nodes | tree.below(nodes))[operator] & (operator >= 0)
    kernel = (events["kind"] == "kernel").to_numpy() & (launch >= 0)
    stream = events["stream"].fill_null(-1).to_numpy()
    hidden = launch[kernel & ~covered & np.isin(stream, np.unique(stream[kernel & covered]))]
    calls = trace.runtime_calls
    at, of = calls["ts_ns"].to_numpy()[hidden], of_thread[calls["thread"].to_numpy()[hidden]]
    began = trace.operators["ts_ns"].to_numpy()[rows]
    # Nodes of one thread's group come in their order of time, the groups of its steps one after the other.
    threads = of_thread[trace.operators["thread"].to_numpy()[rows]]
    found = [np.zeros(0, np.int64)]
    for thread in np.unique(of).tolist():
        own = np.flatnonzero(threads == thread)
        found.append(own[np.minimum(np.searchsorted(began[own], at[of == thread]), len(own) - 1)] if len(own) else own)
    return np.unique(np.concatenate(found))


def _restrided(tree: OperatorTree, work: OperatorWork, ran: Ran) -> dict[int, TensorSpec]:
    """The results of indexing, by node: it views its source in the result's shape, which its arguments do not state."""
    asked = np.array([call.name in _INDEXES and call.returned is None for call in work.calls], np.bool_)
    if not asked.any():
        return {}
    node_of = {int(ran.rows[node]): node for node in np.flatnonzero(asked[ran.call_of]).tolist()}
    viewing = np.array([call.name == "aten::as_strided" for call in work.calls], np.bool_)
    inside = np.flatnonzero((work.recorded_of >= 0) & viewing[np.maximum(work.recorded_of, 0)])
    out: dict[int, TensorSpec] = {}
    for row, parent in zip(inside.tolist(), tree.parent[inside].tolist(), strict=True):
        call, node = work.calls[work.recorded_of[row]], node_of.get(parent, -1)
        if node >= 0 and call.returned and call.given[:1] == ran.calls[ran.call_of[node]].given[:1]:
            out.setdefault(node, TensorSpec(call.returned[0].shape, call.given[0].dtype))
    return out


def _group_of_thread(trace: Trace) -> Numbers:
    """Per thread a number: the threads of a backward pass work with the values of the training thread."""
    threads = trace.operators["thread"].to_numpy()
    group = np.arange(max(len(trace.threads), int(threads.max(initial=0)) + 1), dtype=np.int64)
    training = training_thread(trace)
    if training is not None:
        group[list(backward_threads(trace))] = training
    return group


def _number(specs: dict[TensorSpec, int], spec: TensorSpec) -> int:
    """The number of a shape, dtype and order in memory; strides of dimensions of size 1 are ignored."""
    strides = dense(spec.shape) if spec.strides is None else spec.strides
    kept = tuple(0 if size == 1 else step for size, step in zip(spec.shape, strides, strict=False))
    return specs.setdefault(TensorSpec(spec.shape, spec.dtype, kept), len(specs))


def _spread(of_call: Sequence[Sequence[int]], ran: Ran) -> tuple[Numbers, Numbers]:
    """Per node and tensor of its call the node, and the number that the call has for the tensor."""
    lengths = np.array([len(one) for one in of_call], np.int64)
    flat = np.array([number for one in of_call for number in one], np.int64)
    count = lengths[ran.call_of]
    node = np.repeat(np.arange(len(ran.call_of), dtype=np.int64), count)
    within = np.arange(len(node), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
    starts = (np.cumsum(lengths) - lengths)[ran.call_of]
    return node, flat[np.repeat(starts, count) + within] if len(flat) else node


def _looser_keys(specs: list[TensorSpec]) -> list[tuple[Numbers, Numbers]]:
    """The numbers by which reads look for values and by which values are found, per shape, the surest first.

    Shape and dtype; shape alone where the dtype of the one or the other is not recorded.
    """
    unknown = np.array([spec.dtype == UNKNOWN_DTYPE for spec in specs], np.bool_)
    typed = _numbered([(spec.shape, spec.dtype) for spec in specs])
    shaped = _numbered([spec.shape for spec in specs])
    none = shaped + len(specs)
    return [(typed, typed), (np.where(unknown, shaped, none), shaped), (shaped, np.where(unknown, shaped, none))]


def _numbered(values: Sequence[object]) -> Numbers:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in values], np.int64)


def _last(group: Numbers, reads: tuple[Numbers, Numbers], makes: tuple[Numbers, Numbers], back: Numbers) -> Numbers:
    """Per read (node, key) the place of the last make before it with the same key in the same group, else -1.

    ``back`` is how many makes before that one is meant.
    """
    if not len(makes[0]) or not len(reads[0]):
        return np.full(len(reads[0]), -1, np.int64)
    keys, width = int(max(reads[1].max(), makes[1].max())) + 1, len(group) + 1
    wanted, made = ((group[node] * keys + key) * width + node for node, key in (reads, makes))
    order = np.argsort(made, kind="stable")
    place = np.searchsorted(made[order], wanted) - 1 - back
    last = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (made[last] // width == wanted // width), last, -1)


def _from_the_last(values: Numbers) -> Numbers:
    """Per entry how many equal ones come after it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    out = np.zeros(len(values), np.int64)
    out[order] = np.searchsorted(ordered, ordered, side="right") - 1 - np.arange(len(values))
    return out


def _without_result(ran: Ran, returned: Mapping[int, TensorSpec]) -> list[int]:
    """The nodes that return a tensor of an unknown shape, larger than their input."""
    asked = [
        bool(call.given) and base_name(call.name)[1].startswith(_ENLARGE) and call.returned is None
        for call in ran.calls
    ]
    nodes: list[int] = np.flatnonzero(np.array(asked, np.bool_)[ran.call_of]).tolist() if asked else []
    return [node for node in nodes if node not in returned]


class _Guesses:
    """Reads of values without a known producer: the first fitting one behind a call reads that call's result."""

    def __init__(self, ran: Ran, read_by: Numbers, read_spec: Numbers, found: Numbers, specs: list[TensorSpec]) -> None:
        self._ran, self._read_by, self._read_spec, self._found = ran, read_by, read_spec, found
        self._specs = specs
        self._first = np.searchsorted(read_by, np.arange(len(ran.rows) + 1))

    def reads_behind(self, node: int) -> list[int]:
        """The reads of a node's result: more elements than its input, and a side in common with it."""
        given = self._ran.calls[self._ran.call_of[node]].given[0]
        begin, end = self._first[node + 1], self._first[min(node + 1 + NEAR, len(self._ran.rows))]
        for read in range(begin, end):
            spec = self._specs[self._read_spec[read]]
            larger = spec.numel > given.numel and spec.dtype == given.dtype and len(spec.shape) > 1
            if larger and self._is_free(read, node) and _have_a_side_in_common(given, spec):
                later = range(read, min(read + _MOST_READS, len(self._read_by)))
                return [
                    one for one in later if self._read_spec[one] == self._read_spec[read] and self._is_free(one, node)
                ]
        return []

    def _is_free(self, read: int, node: int) -> bool:
        return bool(self._found[read] < 0 and self._ran.group[self._read_by[read]] == self._ran.group[node])


def _have_a_side_in_common(given: TensorSpec, made: TensorSpec) -> bool:
    """Whether repeated rows, or a larger picture, could be the result of a tensor."""
    return made.shape[-1:] == given.shape[-1:] or made.shape[:2] == given.shape[:2]
