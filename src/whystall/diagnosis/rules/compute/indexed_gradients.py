"""Rows that are picked by ``x[index]``, whose gradients are added one by one."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import BANDWIDTH_REACHED, durations, shortened
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import Shape, sizes_by_argument

CAUSE: Final = cause_beside(__name__)
_LEAST_NUMBERS: Final = CAUSE.threshold("least_numbers")
_SLOW_NS: Final = CAUSE.threshold("slow_ns")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_SLOW_TIMES: Final = CAUSE.threshold("slow_times")
_SCATTERED: Final = CAUSE.threshold("scattered")
_ADDS: Final = "aten::_index_put_impl_"
_PICKS: Final = "aten::index"
# The node of the backward pass, and the engine's records around it.
_MOST_REMOVES: Final = 3
_MATRIX: Final = 2
# Where index_put has the values, behind the matrix and the indices.
_VALUES: Final = 2
# Time of index_select's relative to it, for ten sizes of 1 to 256 numbers a row: 0.04 to 0.44.
_LEFT: Final = (0.05, 0.15, 0.4)
# The device kernels that add all values of one row, one number after another: torch's for rows of any size
# (aten/src/ATen/native/cuda/Indexing.cu). The sort of the indices before them stays with any kernel.
_ADDING: Final = "indexing_backward_kernel"


def on_a_cpu(case: Case) -> Iterator[Replayed]:
    """Additions of the gradients of picked rows that are slow for their number, and the indexings that picked these."""
    for rank in case.ranks:
        slow = _slow(rank)
        if not slow:
            continue
        adds = np.zeros(len(rank.trace.operators), np.bool_)
        adds[list(slow)] = True
        picks = _forward_of(rank, adds)
        found = adds | picks
        nodes = case.work_of(rank, found | rank.workings.tree.below(found))
        taken = case.time_of(nodes)
        if taken < _LEAST_SHARE * case.step_ns:
            continue
        least, expected, most = _LEFT
        rows, columns = max(slow.values(), key=prod)
        picked_at = code_of(case, case.work_of(rank, picks))
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=taken,
            evidence=(
                evidence.count("rows that are picked", rows),
                evidence.count("numbers in each", columns),
                evidence.time(
                    "picking them, and adding up their gradients", taken, case.events_of(nodes), per=case.per
                ),
            ),
            removal=case.without(nodes, expected),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: the same rows by index_select, by measured shares",
            code=picked_at if picked_at.lines else code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.1,
            confidence=0.85,
            rivals=("compute.dense-embedding", "host.small-operators"),
        )


def on_a_device(case: Case) -> Iterator[Replayed]:
    """Kernels that add gradients of picked rows, and take far longer than moving these rows does.

    The rows of one index are added one after another by the same few threads: the most frequent index determines a
    call's time.
    """
    for rank in case.ranks:
        adds, moved_ns = _adding_on_a_device(rank)
        slow = adds & (durations(rank) >= _SLOW_TIMES * moved_ns)
        if not slow.any():
            continue
        expected, most, least = (
            shortened(case, rank, slow, moved_ns / reached)
            for reached in (_SCATTERED, 1 / _SLOW_TIMES, BANDWIDTH_REACHED)
        )
        nodes = case.nodes(rank, device=slow)
        taken = case.time_of(nodes)
        if taken < _LEAST_SHARE * case.step_ns:
            continue
        operator = rows_of(rank.trace.device_events["operator"])[slow]
        longest = int(operator[durations(rank)[slow].argmax()])
        whole, values = _sizes(rank.trace.operators["input_dims"].cast(str)[longest])
        rows = whole[_dimension(whole, values) or 0]
        called = np.zeros(len(rank.trace.operators), np.bool_)
        called[operator] = True
        picked_at = code_of(case, case.work_of(rank, _forward_of(rank, called)))
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=taken,
            evidence=(
                evidence.time("kernels that add up their gradients", taken, case.events_of(nodes), per=case.per),
                evidence.share(
                    "of it that moving these rows takes", float(moved_ns[slow].sum() / durations(rank)[slow].sum())
                ),
                evidence.count("rows that the slowest of them adds", prod(values) * rows // max(prod(whole), 1)),
                evidence.count("rows that it adds them to", rows),
            ),
            removal=expected,
            floor=most,
            ceiling=least,
            method="replay: the same rows at the bandwidth that scattered rows reach",
            code=picked_at if picked_at.lines else code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.85,
            rivals=("compute.dense-embedding",),
        )


def _adding_on_a_device(rank: RankCase) -> tuple[Mask, NDArray[np.float64]]:
    """The kernels that add gradients of picked rows, and the time to move these at the device's peak bandwidth."""
    table, work = rank.trace.operators, rank.workings
    speed = work.bytes_per_s
    if speed is None or "forward" not in table.columns:
        nothing = np.zeros(len(rank.trace.device_events))
        return nothing.astype(np.bool_), nothing
    calls = matching(table["name"], _ADDS.__eq__) & work.tree.below(rank.backward)
    rows = np.flatnonzero(calls)
    calls[rows] = judged(table.select("input_dims")[rows], _are_rows)
    operator = rows_of(rank.trace.device_events["operator"])
    adding = rank.device_named(lambda name: _ADDING in name) & np.append(calls, False)[operator]
    owner = work.events.owner
    moved = np.append(work.work.moved, 0)[owner]
    return adding & (moved > 0), moved / speed * 1e9


def _are_rows(dims: str | None) -> bool:
    """Whether rows along one dimension were picked: `index_select` picks the same.

    Single numbers of a matrix are picked by an index for each dimension: there is no operator that does it otherwise.
    """
    return _dimension(*_sizes(dims)) is not None


def _dimension(whole: Shape, values: Shape) -> int | None:
    """The dimension along which rows were picked: the values have the sizes of an index in its place."""
    more = len(values) - len(whole)
    fits = (
        number
        for number in range(len(whole))
        if more >= 0 and values[:number] == whole[:number] and values[number + 1 + more :] == whole[number + 1 :]
    )
    return next(fits, None)


def _sizes(dims: str | None) -> tuple[Shape, Shape]:
    """The sizes of an accumulation's target, and of its addends; nothing where they are not known."""
    given = sizes_by_argument(dims)
    if len(given) <= _VALUES or len(given[0]) != 1 or len(given[_VALUES]) != 1:
        return (), ()
    return given[0][0], given[_VALUES][0]


def _slow(rank: RankCase) -> dict[int, tuple[int, int]]:
    """The calls that add gradients slowly: how many rows, and the numbers in each."""
    table = rank.trace.operators
    if "forward" not in table.columns:
        return {}
    adds = np.flatnonzero(matching(table["name"], _ADDS.__eq__) & rank.workings.tree.below(rank.backward))
    picked = judged(table.select("input_dims")[adds], _picked)
    lasts = table["duration_ns"].to_numpy()[adds]
    return {
        int(row): size
        for row, size, ns in zip(adds, picked, lasts, strict=True)
        if prod(size) >= _LEAST_NUMBERS and ns >= _SLOW_NS * prod(size)
    }


def _picked(dims: str | None) -> tuple[int, int]:
    """How many rows of a matrix gradients are added to, and the numbers in each; nothing for other indexings.

    The indexed dimension is not recorded: sizes identify it, unless the picked rows are of the matrix's size.
    """
    matrix, values = _sizes(dims)
    rows = len(matrix) == _MATRIX and len(values) >= _MATRIX and values[-1] == matrix[1] and values != matrix
    return (prod(values[:-1]), values[-1]) if rows else (0, 0)


def _forward_of(rank: RankCase, adds: Mask) -> Mask:
    """The indexings whose gradients are added so."""
    table = rank.trace.operators
    parent, forward = rows_of(table["parent"]), rows_of(table["forward"])
    above = np.flatnonzero(adds).astype(parent.dtype)
    out = np.zeros(len(table), np.bool_)
    for _ in range(_MOST_REMOVES):
        above = parent[above]
        above = above[above >= 0]
        own = forward[above]
        out[own[own >= 0]] = True
    picks: Mask = out & matching(table["name"], _PICKS.__eq__)
    return picks


RULE = Rule(
    CAUSE,
    (
        Finder(on_a_cpu, ("trace", "no_device", "operators", "shapes")),
        Finder(on_a_device, ("trace", "device_events", "operators", "shapes")),
    ),
)
