"""Backward passes that go through the same calls again before an optimizer steps: one for each loss or task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.autograd import ACCUMULATE

AGAIN: Final = "several backward passes through the same calls"
_ENGINE: Final = "autograd::engine"
_ADDS: Final = frozenset({"aten::add_", "aten::add"})
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Visits:
    """Visits of the autograd engine, by time: its rows, their calls' numbers, and the step and pass they are in."""

    rows: NDArray[np.int64]
    number: NDArray[np.int64]
    step: NDArray[np.intp]
    begun: NDArray[np.int64]

    def only(self, chosen: Mask) -> Self:
        """Some of them."""
        return type(self)(self.rows[chosen], self.number[chosen], self.step[chosen], self.begun[chosen])


def goes_through_again(rank: RankCase, rows: Mask) -> bool:
    """Whether most of some backward work is of calls that backward passes repeat before the next step.

    An optimizer's step between them is another network's (a generator's loss after its critic's): no sum of both.
    """
    found = _visits(rank) if rows.any() else None
    if found is None:
        return False
    found = found.only(np.isin(found.begun, list(_Gradients.of(rank).passes(found, rank))))
    _, place, passes = _by_call(found)
    lasts = np.where(rows[found.rows], rank.trace.operators["duration_ns"].to_numpy()[found.rows], 0)
    return bool(2 * lasts[passes[place] > 1].sum() > lasts.sum() > 0)


def summed_at_the_end(rank: RankCase) -> NDArray[np.float64]:
    """The share left of each operator if one pass went back from the sum: 0 for repeated visits, else 1.

    Such passes add to the gradients of those before, and nothing reads or drops these in between: a job that needs the
    gradients of each loss (to weigh or to project them) needs each pass.
    """
    table = rank.trace.operators
    left: NDArray[np.float64] = np.ones(len(table))
    found = _visits(rank)
    if found is None or _by_call(found)[2].max() == 1:  # as a rule: nothing is gone through twice
        return left
    gradients = _Gradients.of(rank)
    passes = gradients.passes(found, rank)
    found = found.only(np.isin(found.begun, list(passes)))
    if not len(found.rows):
        return left
    first, place, count = _by_call(found)
    again = (count[place] > 1) & (found.begun > found.begun[first][place])
    adding = [number for number in np.unique(found.begun[again]).tolist() if gradients.adds(passes, number)]
    again &= np.isin(found.begun, adding)
    gone = np.zeros(len(table), np.bool_)
    gone[found.rows[again]] = True
    left[gone | rank.workings.tree.below(gone)] = 0.0
    return left


@dataclass(frozen=True, slots=True)
class _Pass:
    """Begin and end of a backward pass, and the share of its gradients that it adds to others."""

    begins: int
    ends: int
    added: float


@dataclass(frozen=True, slots=True)
class _Gradients:
    """When gradients are accumulated, which of them are added to others, and when something else touches any."""

    at: NDArray[np.int64]
    added: Mask
    touched: NDArray[np.int64]

    @classmethod
    def of(cls, rank: RankCase) -> Self:
        table = rank.trace.operators
        at, parent = table["ts_ns"].to_numpy(), rows_of(table["parent"]).astype(np.int64)
        adds = matching(table["name"], _ADDS.__contains__) & (parent >= 0)
        added = np.zeros(len(table), np.bool_)
        added[parent[adds]] = True
        made = np.flatnonzero(matching(table["name"], ACCUMULATE.__eq__))
        dims = table["input_dims"].cast(str).fill_null("")
        # Vectors have the sizes of too much else.
        shapes = {text[1:-1] for text in dims.gather(made).to_list() if "," in text[1:-1]}
        engine = matching(table["name"], lambda name: name.startswith(_ENGINE) or name == ACCUMULATE)
        # Products, their callers and their calls take weights, which have their gradients' shapes.
        dense = rank.workings.work.dense > 0
        products = _and_above(dense, parent) | rank.workings.tree.below(dense)
        others = np.flatnonzero(~engine & ~rank.workings.tree.below(engine) & ~products)
        touch = [any(shape in text for shape in shapes) for text in dims.gather(others).to_list()]
        return cls(at[made], added[made], np.sort(at[others[np.array(touch, np.bool_)]]))

    def passes(self, found: _Visits, rank: RankCase) -> dict[int, _Pass]:
        """The passes that accumulate gradients, by their numbers."""
        table = rank.trace.operators
        at, end = table["ts_ns"].to_numpy(), (table["ts_ns"] + table["duration_ns"]).to_numpy()
        out = {}
        for number in np.unique(found.begun).tolist():
            mine = found.rows[found.begun == number]
            begins, ends = int(at[mine].min()), int(end[mine].max())
            own = self.added[(self.at >= begins) & (self.at <= ends)]
            if len(own):
                out[number] = _Pass(begins, ends, float(own.mean()))
        return out

    def adds(self, passes: dict[int, _Pass], number: int) -> bool:
        """Whether a pass adds most of its gradients to unchanged ones of the pass before."""
        before = passes.get(max((other for other in passes if other < number), default=-1))
        if before is None or passes[number].added < _MOSTLY:
            return False
        return bool(np.searchsorted(self.touched, passes[number].begins) == np.searchsorted(self.touched, before.ends))


def _visits(rank: RankCase) -> _Visits | None:
    table = rank.trace.operators
    if "sequence" not in table.columns:
        return None
    sequence, at = table["sequence"].fill_null(-1).to_numpy(), table["ts_ns"].to_numpy()
    rows = np.flatnonzero(matching(table["name"], lambda name: name.startswith(_ENGINE)) & (sequence >= 0))
    rows = rows[np.argsort(at[rows], kind="stable")]
    if not len(rows):
        return None
    number = sequence[rows]
    begun = np.cumsum(
        np.diff(number, prepend=0) > 0, dtype=np.int64
    )  # autograd goes through a graph from the last number down
    return _Visits(rows, number, np.searchsorted(np.sort(rank.optimizer_steps[0]), at[rows]), begun)


def _by_call(found: _Visits) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]:
    """The first visit of each call in each step, the place of each visit's call, and each call's number of passes."""
    calls = np.stack([found.number, found.step])
    _, first, place = np.unique(calls, axis=1, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    both = np.unique(np.stack([place, found.begun]), axis=1)
    return first, place, np.bincount(both[0], minlength=len(first))


def _and_above(chosen: Mask, parent: NDArray[np.int64]) -> Mask:
    """Some operators and all that call them."""
    out, rows = chosen.copy(), np.flatnonzero(chosen)
    while len(rows):
        above = parent[rows]
        rows = np.unique(above[(above >= 0) & ~out[np.maximum(above, 0)]])
        out[rows] = True
    return out
