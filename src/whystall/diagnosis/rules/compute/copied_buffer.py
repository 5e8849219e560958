"""Large tensors that each step copies, only to add or replace a few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.cost import kind_of
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.frees import given_back
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.json_text import parse_json
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, first_elements, first_size, sizes_by_argument

CAUSE: Final = cause_beside(__name__)
_LEAST_BYTES: Final = CAUSE.threshold("least_bytes")
_MOST_ADDED: Final = CAUSE.threshold("most_added")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_SMALL_NS: Final = CAUSE.threshold("small_ns")
_COPIES: Final = frozenset({"aten::clone", "aten::copy_", "aten::contiguous"})
_WRITES: Final = frozenset({"aten::copy_", "aten::fill_", "aten::zero_"})
# A store that one step adds to and several learn from: this share of the steps adds, and more than one step.
_LEAST_STEPS: Final = 1 / 8
_SEVERAL: Final = 2
_SHIFTED: Final = ("input_dims", "concrete_inputs")
_BYTES: Final = 4
_BACKWARD: Final = "CatBackward0"
# A queue's old part is cut off at most this many operators before the new one is appended, or after it.
_NEAR: Final = 8
_VIEWS: Final = frozenset({"aten::as_strided", "aten::detach", "aten::narrow", "aten::select"})
# A cache of keys and values: rows of a batch, heads, positions, values. Instead of a concatenation, attention receives
# a part of a longer buffer, whose rows lie apart: this share of the copies' time stays, as expected and at most.
_OF_CACHES: Final = 4
_LEFT_OF_CACHES: Final = (0.6, 0.95)


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A large concatenation that adds little, and copies of that size; ``share`` of it is new."""

    rank: RankCase
    chosen: Mask
    copied: Mask
    share: float
    alone: Mask
    """The nodes of the concatenations' work, and of them and the copies."""
    nodes: Mask

    def candidate(self, case: Case, removal: Change, **more: Any) -> Replayed:
        """The candidate, by recorded sizes."""
        per_step = case.time_of(self.nodes)
        return Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "concatenations and copies of that size", per_step, case.events_of(self.nodes), per=case.per
                ),
                evidence.share("of what is concatenated is new", self.share),
            ),
            removal=removal,
            method="replay: what is appended, without what was there",
            code=code_of(case, self.nodes),
            ranks=(self.rank.rank,),
            confidence=0.85,
            **more,
        )


def _buffers(case: Case) -> Iterator[_Buffer]:
    """Concatenations that add little, in most steps, and copies beside them, where they take a part of a step."""
    for rank in case.ranks:
        left, sizes = _concatenated(rank)
        chosen = left < 1
        if not _in_many_steps(rank, chosen):
            continue
        copied = _copied(rank, sizes) & ~chosen
        alone, nodes = (case.work_of(rank, called | _called(rank, called)) for called in (chosen, chosen | copied))
        if case.time_of(nodes) >= _LEAST_SHARE * case.step_ns:
            yield _Buffer(rank, chosen, copied, float(np.median(left[chosen])), alone, nodes)


def on_a_cpu(case: Case) -> Iterator[Replayed]:
    """By recorded sizes."""
    for found in _buffers(case):
        share = found.share
        # The old tensor's memory returns to the system when the new one takes its place.
        nodes = found.nodes | given_back(case, found.rank, found.chosen | found.copied)
        expected, most = _LEFT_OF_CACHES if _of_caches(found.rank, found.chosen) else (share, share)
        yield found.candidate(
            case,
            case.without(nodes, max(share, expected)),
            floor=case.without(found.alone, max(share, most)),
            ceiling=case.without(nodes, share),
            uncertainty=0.3,
            rivals=("host.small-operators", "host.allocator"),
        )


def on_a_device(case: Case) -> Iterator[Replayed]:
    """The same by the kernels of these operators: writing new rows takes at least the time of a small kernel.

    Attention on devices takes keys and values with rows apart as fast as others: caches leave no more.
    """
    for found in _buffers(case):
        kept = np.maximum(found.share, np.minimum(_SMALL_NS / np.maximum(case.replayed.duration, 1), 1.0))
        yield found.candidate(
            case,
            case.without(found.nodes, kept),
            floor=case.without(found.alone, kept),
            uncertainty=0.2,
            rivals=("compute.graph-copies", "inference.bandwidth-bound-decode"),
        )


def _concatenated(rank: RankCase) -> tuple[NDArray[np.float64], frozenset[int]]:
    """Per operator the share of a concatenation that is new (1 for all others), and how large the results are."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], lambda name: name == "aten::cat"))
    told = judged(table.select("input_dims")[rows], _added)
    added = [one if kept else _Added() for one, kept in zip(told, _kept(rank, rows, told), strict=True)]
    left = np.ones(len(table))
    left[rows] = [one.share for one in added]
    moved = _rolled(rank)
    left[list(moved)] = [one.share for one in moved.values()]
    every = (*added, *moved.values())
    return left, frozenset(size for one in every if one.total for size in (one.total, one.largest))


def _rolled(rank: RankCase) -> dict[int, _Added]:
    """Stores that `torch.roll` moves by a few rows, always the same number: room for new ones, which are few of all.

    A model's own rolls are differentiated, or reversed; a sample's shift varies.
    """
    table = rank.trace.operators
    if "concrete_inputs" not in table.columns:
        return {}
    backward = rank.backward | rank.workings.tree.below(rank.backward)
    rows = np.flatnonzero(matching(table["name"], lambda name: name == "aten::roll") & ~backward)
    learns = _differentiated(rank, "RollBackward0")
    known = {
        row: (shape, by)
        for row, (shape, by) in zip(rows.tolist(), judged(table.select(*_SHIFTED)[rows], _shift), strict=True)
        if by and not learns[row]
    }
    shifts = {shape: {by for other, by in known.values() if other == shape} for shape, _ in known.values()}
    written = _written_next(rank) if known else None
    return {
        row: _Added(abs(by) / shape[0], prod(shape), prod(shape))
        for row, (shape, by) in known.items()
        if len(shifts[shape]) == 1
        and abs(by) <= _MOST_ADDED * shape[0]
        and prod(shape) * _BYTES >= _LEAST_BYTES
        and written is not None
        and written(row) == abs(by) * prod(shape[1:])
    }


def _written_next(rank: RankCase) -> Callable[[int], int]:
    """A function for the number of elements that the next operator but views writes in place; 0 for any other."""
    table = rank.trace.operators
    names, dims = table["name"].cast(str), table["input_dims"].cast(str)
    ends = table["ts_ns"].to_numpy() + table["duration_ns"].to_numpy()
    order = np.argsort(table["ts_ns"].to_numpy(), kind="stable")
    place = np.empty(len(table), np.int64)
    place[order] = np.arange(len(order))
    at = table["ts_ns"].to_numpy()

    def count(row: int) -> int:
        for other in order[place[row] + 1 :].tolist():
            if at[other] < ends[row] or names[other] in _VIEWS or kind_of(names[other]) == "view":
                continue
            return first_elements(dims[other]) if names[other] in _WRITES else 0
        return 0

    return count


def _shift(dims: str | None, concrete: str | None) -> tuple[Shape, int]:
    """The size of a tensor, and by how many rows it is moved; 0 where it is moved along another dimension, too."""
    try:
        by, along = (parse_json(parse_json(concrete or "")[at]) for at in (1, 2))
        one = by[0] if along == [0] and len(by) == 1 and isinstance(by[0], int) else 0
    except (ValueError, TypeError, IndexError, KeyError):
        return (), 0
    shape = first_size(dims)
    return (shape, one) if shape else ((), 0)


class _Added(NamedTuple):
    """A concatenation: the share of it that is not its largest tensor's, and elements; nothing where that is much."""

    share: float = 1.0
    total: int = 0
    largest: int = 0


def _added(dims: str | None) -> _Added:
    sizes = [prod(one) for given in sizes_by_argument(dims)[:1] for one in given]
    total, largest = sum(sizes), max(sizes, default=0)
    if len(sizes) < len(("one", "other")) or total * _BYTES < _LEAST_BYTES or total - largest > _MOST_ADDED * total:
        return _Added()
    return _Added(max((total - largest) / total, 1 / total), total, largest)


def _kept(rank: RankCase, rows: NDArray[np.intp], told: Sequence[_Added]) -> list[bool]:
    """Which concatenations add to a store, and not to a fresh result (a class token, a margin).

    A growing store was the result of the previous concatenation; a queue also loses a part, before or afterwards. A
    tensor that is cut twice is rolled (`torch.roll`) or split again, and one that autograd follows is no store.
    """
    if not any(one.total for one in told):
        return [False] * len(told)
    totals, largest = {one.total for one in told}, {one.largest for one in told}
    followed, cuts = _differentiated(rank)[rows].tolist(), _cuts(rank)
    return [
        one.total > 0 and not is_followed and (one.largest in totals or one.total in largest or cuts(row, one) == 1)
        for row, one, is_followed in zip(rows.tolist(), told, followed, strict=True)
    ]


def _differentiated(rank: RankCase, by: str = _BACKWARD) -> NDArray[np.bool_]:
    """Operators whose autograd number a backward concatenation carries, or another node of autograd's."""
    table = rank.trace.operators
    if "sequence" not in table.columns:
        return np.zeros(len(table), np.bool_)
    sequence = table["sequence"].fill_null(-1).to_numpy()
    backward = matching(table["name"], lambda name: name == by) & (sequence >= 0)
    return np.isin(sequence, sequence[backward])


def _cuts(rank: RankCase) -> Callable[[int, _Added], int]:
    """A function for the number of cuts of a tensor of a concatenation's size just before it, or else just after it.

    It stops at an operator on tensors of that size: it makes a new one.
    """
    table = rank.trace.operators
    whole = matching(table["name"], lambda name: name == "aten::cat")
    order = np.argsort(table["ts_ns"].to_numpy(), kind="stable")
    order = order[~rank.workings.tree.below(whole)[order]]
    place = np.full(len(table), -1)
    place[order] = np.arange(len(order))
    names, dims = table["name"].cast(str), table["input_dims"].cast(str)

    def among(rows: NDArray[np.intp], of: _Added) -> int:
        found = 0
        for row in rows.tolist():
            elements = first_elements(dims[row])
            if names[row] == "aten::slice":
                found += elements == of.total
            elif names[row] == "aten::cat" or (elements >= of.largest and names[row] not in _VIEWS):
                break
        return found

    def count(row: int, of: _Added) -> int:
        at = int(place[row])
        before = among(order[max(at - _NEAR, 0) : at][::-1], of)
        return before or among(order[at + 1 : at + 1 + _NEAR], of)

    return count


def _of_caches(rank: RankCase, chosen: NDArray[np.bool_]) -> bool:
    """Whether most of the joined tensors have the dimensions of keys and values."""
    dims = rank.trace.operators["input_dims"].filter(pl.Series(chosen)).cast(pl.String)
    joined = [next(iter(sizes_by_argument(text)), ()) for text in dims]
    return sum(len(one[0]) == _OF_CACHES for one in joined if one) > len(joined) / 2


def _copied(rank: RankCase, sizes: frozenset[int]) -> NDArray[np.bool_]:
    """Copies of tensors of these sizes."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], _COPIES.__contains__))
    out = np.zeros(len(table), np.bool_)
    out[rows] = [size in sizes for size in judged(table.select("input_dims")[rows], first_elements)]
    return out


def _called(rank: RankCase, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return rank.workings.tree.below(chosen)


def _in_many_steps(rank: RankCase, chosen: NDArray[np.bool_]) -> bool:
    """Whether steps have one repeatedly (without steps: whether there are any)."""
    steps = rank.trace.steps["ts_ns"].to_numpy()
    if not chosen.any() or len(steps) < 2:
        return bool(chosen.any())
    place = np.searchsorted(steps, rank.trace.operators["ts_ns"].to_numpy()[chosen], side="right") - 1
    have = len(np.unique(place[place >= 0]))
    return have >= max(_LEAST_STEPS * len(steps), _SEVERAL)


RULE = Rule(
    CAUSE,
    (
        Finder(on_a_cpu, ("trace", "no_device", "operators", "shapes")),
        Finder(on_a_device, ("trace", "device_events", "operators", "shapes")),
    ),
)
