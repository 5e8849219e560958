"""Work of a recorded window that is done again or for nothing, by the values of three later steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from whystall.analysis.dataflow.alignment import rows_of_calls
from whystall.analysis.dataflow.chosen_calls import ChosenCalls, chosen_calls
from whystall.analysis.dataflow.demand import unread
from whystall.analysis.dataflow.sameness import computed_again
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.readers.execution_trace import ExecutionTrace, Node

# A job that discards all its outputs is a benchmark.
_MOST_OF_SERVING: Final = 0.5
_FEWEST_STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class WastedWork:
    """Operators of the window that a step could do without.

    Args:
        within_step: Those whose results are there already in the same step.
        backward: The operators that go back through these.
        invariant: Those whose results are the same in each step.
        dead: Those whose results nothing reads.
    """

    within_step: Mask
    backward: Mask
    invariant: Mask
    dead: Mask


@dataclass(frozen=True, slots=True)
class WastedCalls:
    """The same as calls of an execution trace: their places among the ``chosen`` ones."""

    execution: ExecutionTrace
    chosen: ChosenCalls
    within_step: list[int]
    learned: list[int]
    """Those of the same step that autograd goes back through."""
    invariant: list[int]
    dead: list[int]


def wasted_calls(execution: ExecutionTrace) -> WastedCalls | None:
    """The calls of an execution trace that could be left out; ``None`` where too little was recorded to know."""
    if execution.warnings or (chosen := chosen_calls(execution)).steps < _FEWEST_STEPS:
        return None
    again = [one for one in computed_again(chosen) if chosen.calls[one.call].step == chosen.steps - 1]
    within = [one.call for one in again if one.within_step]
    learned = [call for call in within if chosen.calls[call].learned]
    invariant = [one.call for one in again if not one.within_step]
    return WastedCalls(execution, chosen, within, learned, invariant, _of_one_step(chosen, unread(chosen)))


def wasted_work(rank: RankCase, calls: WastedCalls) -> WastedWork | None:
    """The operators; ``None`` where there are none, or where work ran that no operator shows (compiled, a graph)."""
    if _works_unseen(rank):
        return None
    within, learned, invariant, dead = (
        _rows(rank, calls, places) for places in (calls.within_step, calls.learned, calls.invariant, calls.dead)
    )
    if _is_benchmark(rank, dead):
        dead = np.zeros_like(dead)
    if not (within | invariant | dead).any():
        return None
    return WastedWork(within, _backward_of(rank, learned), invariant, dead)


def _works_unseen(rank: RankCase) -> bool:
    """Whether work was launched on a device outside of operators: it may read and write any memory there."""
    return rank.on_device and len(rank.dataflow.blind) > 0


def _of_one_step(chosen: ChosenCalls, places: Iterable[int]) -> list[int]:
    """The places in the step that has the most of them: what is freed in it shows best."""
    by_step: defaultdict[int, list[int]] = defaultdict(list)
    for place in places:
        by_step[chosen.calls[place].step].append(place)
    return max(by_step.values(), key=len, default=[])


def _rows(rank: RankCase, calls: WastedCalls, places: list[int]) -> Mask:
    """The operators of the window that are some calls of one step, with all that they call."""
    own = np.zeros(len(rank.trace.operators), np.bool_)
    if places:
        chosen, step = calls.chosen, calls.chosen.calls[places[0]].step
        numbers = {chosen.calls[place].node.number for place in places}
        own[rows_of_calls(rank.trace, _nodes_of(calls.execution, chosen, step), numbers)] = True
    return own | rank.workings.tree.below(own)


def _nodes_of(execution: ExecutionTrace, chosen: ChosenCalls, step: int) -> list[Node]:
    begin = min(call.node.number for call in chosen.calls if call.step == step)
    end = min((call.node.number for call in chosen.calls if call.step > step), default=1 << 62)
    return [node for node in execution.nodes if begin <= node.number < end]


def _is_benchmark(rank: RankCase, dead: Mask) -> bool:
    own = rank.trace.operators["self_ns"].to_numpy()
    return not rank.trains and int(own[dead].sum()) > _MOST_OF_SERVING * int(own.sum())


def _backward_of(rank: RankCase, forward: Mask) -> Mask:
    """The operators of the backward passes of some operators, by autograd's numbers."""
    table = rank.trace.operators
    if "sequence" not in table.columns or not forward.any():
        return np.zeros(len(table), np.bool_)
    sequence = table["sequence"].fill_null(-1).to_numpy()
    numbers = np.unique(sequence[forward & (sequence >= 0)])
    own = rank.backward & np.isin(sequence, numbers) & (sequence >= 0)
    out: Mask = own | rank.workings.tree.below(own)
    return out
