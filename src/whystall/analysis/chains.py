"""Chains of kernels on one stream: those that could be one kernel, and those that are too short to keep a device busy.

A fusible chain is a run of elementwise, normalisation, softmax and reducing kernels in which each reads a tensor of the
size that the one before wrote. Traces do not name tensors, so that size is the evidence; where shapes were not recorded
the chain stands without bytes. Fusion saves the intermediate tensors: their reading at least (one that the backward
pass needs is still written), their reading and writing at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMPUTE, Classified
from whystall.analysis.operators import OperatorTree
from whystall.analysis.results import Device
from whystall.analysis.work import EventWork, OperatorWork
from whystall.analysis.work_results import FusibleChain, KernelChains, ShortChains
from whystall.hardware.accelerators import Accelerator
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

_FUSIBLE_FAMILIES: Final = ("elementwise", "activation", "normalization", "softmax", "reduction")
FUSIBLE_KINDS: Final = ("elementwise", "normalisation")
"""Kinds of operators that a compiler could fuse with a neighbour."""
_COPIES: Final = frozenset({"aten::copy_", "aten::_to_copy", "aten::to", "aten::clone", "aten::contiguous"})
BANDWIDTH_SHARE: Final = 0.85
"""Share of the peak bandwidth that a fused kernel is expected to reach: that of good elementwise kernels."""
SHORT_NS: Final = 10_000
_SHORTEST_RUN: Final = 8  # kernels: fewer in a row are no chain
_MOST_NAMES: Final = 32
_MOST_CHAINS: Final = 500


@dataclass(frozen=True, slots=True)
class _Stream:
    """Device events in the order of their streams, with the facts for fusion about each."""

    rows: NDArray[np.intp]
    start: NDArray[np.int64]
    duration: NDArray[np.int64]
    owner: NDArray[np.int32]
    code: NDArray[np.int64]
    follows: NDArray[np.bool_]  # whether the next event is on the same stream, and no kernel of another ran between

    @property
    def gap(self) -> NDArray[np.int64]:
        """Time to the next event, 0 where it overlaps."""
        end = self.start + self.duration
        gap: NDArray[np.int64] = np.maximum(np.append(self.start[1:], end[-1:]) - end, 0)
        return gap


def kernel_chains(
    trace: Trace,
    device: Device,
    tree: OperatorTree,
    work: OperatorWork,
    events: EventWork,
    classified: Classified,
    peak: Accelerator | None,
    *,
    origin: int,
) -> KernelChains:
    """The chains of one device; ``origin`` is the trace's first instant, which starts count from."""
    stream = _in_stream_order(trace, device, tree, events, classified)
    fusible = _fusible(tree, work, stream, trace, classified)
    chains = _fusible_chains(trace, tree, work, stream, fusible, peak, origin=origin)
    return KernelChains(
        rank=device.rank,
        device=device.device,
        fusible=chains[:_MOST_CHAINS],
        fusible_count=sum(chain.count for chain in chains),
        fusible_ns=sum(chain.total_ns for chain in chains),
        short=_short_chains(stream),
    )


def _in_stream_order(
    trace: Trace, device: Device, tree: OperatorTree, events: EventWork, classified: Classified
) -> _Stream:
    table = trace.device_events
    mine = np.flatnonzero(table["device"].to_numpy() == device.device)
    start, number = table["ts_ns"].to_numpy(), table["stream"].fill_null(-1).to_numpy()
    rows = mine[np.lexsort((start[mine], number[mine]))]
    owner = events.owner[rows]
    operator = rows_of(table["operator"])[rows]
    named = np.where(owner >= 0, owner, operator)
    # One code per operator, or per kernel name where the trace links none.
    code = np.where(named >= 0, tree.name_of[np.maximum(named, 0)] if len(tree.name_of) else -1, -1).astype(np.int64)
    code = np.where(code >= 0, code, len(tree.names) + classified.name_of[rows])
    duration = table["duration_ns"].to_numpy()[rows]
    computing = np.sort(start[rows][classified.class_of[rows] == COMPUTE])
    between = np.searchsorted(computing, start[rows][1:]) - np.searchsorted(computing, (start[rows] + duration)[:-1])
    follows = np.append((number[rows][1:] == number[rows][:-1]) & (between <= 0), False)[: len(rows)]
    return _Stream(rows, start[rows], duration, owner, code, follows)


def _fusible(
    tree: OperatorTree, work: OperatorWork, stream: _Stream, trace: Trace, classified: Classified
) -> NDArray[np.bool_]:
    """Which events a compiler could fuse with a neighbour, by their kernel's family or their operator's kind."""
    families = np.array([family in _FUSIBLE_FAMILIES for family in classified.families], np.bool_)
    optimizer = np.array([family == "optimizer" for family in classified.families], np.bool_)
    copies = np.array([name in _COPIES for name in tree.names] + [False], np.bool_)
    kinds = np.array([kind in FUSIBLE_KINDS for kind in work.kinds] + [False], np.bool_)
    family = classified.family_of[stream.rows]
    kernel = (trace.device_events["kind"] == "kernel").to_numpy()[stream.rows]
    operator_kind = work.kind_of[np.maximum(stream.owner, 0)] if len(work.kind_of) else stream.owner * 0 - 1
    by_kind = np.where(stream.owner >= 0, kinds[operator_kind], False)
    copied = copies[np.minimum(stream.code, len(tree.names))]
    compute = classified.class_of[stream.rows] == COMPUTE
    fusible: NDArray[np.bool_] = compute & kernel & ~optimizer[family] & (families[family] | by_kind | copied)
    return fusible


def _fusible_chains(
    trace: Trace,
    tree: OperatorTree,
    work: OperatorWork,
    stream: _Stream,
    fusible: NDArray[np.bool_],
    peak: Accelerator | None,
    *,
    origin: int,
) -> list[FusibleChain]:
    """Runs of at least two calls, equal runs merged, the longest total first."""
    found = _runs_and_chains(trace, tree, work, stream, fusible, peak, origin=origin)
    return sorted((chain for _, _, chain in found), key=lambda chain: (-chain.total_ns, chain.start_ns))


def _runs_and_chains(
    trace: Trace,
    tree: OperatorTree,
    work: OperatorWork,
    stream: _Stream,
    fusible: NDArray[np.bool_],
    peak: Accelerator | None,
    *,
    origin: int,
) -> list[tuple[NDArray[np.intp], NDArray[np.intp], FusibleChain]]:
    """Like runs of at least two calls: the places of their first and last events, and the chain that they are."""
    if len(fusible) < 2:
        return []
    shared = _shared_bytes(work, stream)
    same_call = (stream.owner[1:] == stream.owner[:-1]) & (stream.owner[1:] >= 0)
    joined = stream.follows[:-1] & fusible[1:] & fusible[:-1] & (same_call | (shared != 0))
    first = np.flatnonzero(fusible & ~np.append(False, joined))
    last = np.flatnonzero(fusible & ~np.append(joined, False))
    new_call = np.append(True, ~same_call).astype(np.int64)
    calls = np.cumsum(new_call)
    several = calls[last] > calls[first]
    first, last = first[several], last[several]
    groups = _alike(work, stream, first, last)
    return [
        (
            first[runs],
            last[runs],
            _chain(trace, tree, work, stream, first[runs], last[runs], new_call, shared, peak, origin),
        )
        for runs in groups
    ]


def _shared_bytes(work: OperatorWork, stream: _Stream) -> NDArray[np.int64]:
    """Per neighbouring pair the bytes of the tensor that one writes and the next reads; 0: none, -1: not known."""
    if not len(work.call_of):
        return np.full(max(len(stream.owner) - 1, 0), -1, np.int64)
    return work.handed_over(np.where(stream.owner >= 0, work.call_of[np.maximum(stream.owner, 0)], -1).astype(np.int64))


def _alike(
    work: OperatorWork, stream: _Stream, first: NDArray[np.intp], last: NDArray[np.intp]
) -> list[NDArray[np.intp]]:
    """Runs of the same operators with the same shapes, as places in ``first``, by a hash of the sequence."""
    if not len(first):
        return []
    call = work.call_of[np.maximum(stream.owner, 0)] if len(work.call_of) else stream.owner
    numbered = np.where(stream.owner >= 0, call, -1).astype(np.int64) + 2
    element = (stream.code + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    element += numbered.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    element ^= element >> np.uint64(29)
    element *= np.uint64(0xBF58476D1CE4E5B9)
    length = last - first + 1
    hashes = length.astype(np.uint64)
    for step in range(int(length.max())):
        longer = length > step
        hashes[longer] = hashes[longer] * np.uint64(0x100000001B3) + element[first[longer] + step]
    _, place = np.unique(hashes, return_inverse=True)
    order = np.argsort(place, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(place[order])) + 1)


def _chain(
    trace: Trace,
    tree: OperatorTree,
    work: OperatorWork,
    stream: _Stream,
    first: NDArray[np.intp],
    last: NDArray[np.intp],
    new_call: NDArray[np.int64],
    shared: NDArray[np.int64],
    peak: Accelerator | None,
    origin: int,
) -> FusibleChain:
    begin, end = int(first[0]), int(last[0]) + 1
    kernels, count = end - begin, len(first)
    inside = (first[:, None] + np.arange(kernels)).reshape(-1)
    durations = stream.duration[inside]
    between = (first[:, None] + np.arange(kernels - 1)).reshape(-1)
    steps = [begin + place for place in range(kernels) if place == 0 or new_call[begin + place]]
    moved = _moved(work, stream, steps, shared)
    total = int(durations.sum())
    shortest = int(durations.min())
    bandwidth = None if peak is None else peak.memory_bytes_per_s
    fused: list[int | None] = [None, None]
    if moved is not None and bandwidth is not None:
        fused = [
            min(total, count * max(shortest, round(amount / (BANDWIDTH_SHARE * bandwidth) * 1e9)))
            for amount in moved[1:]
        ]
    return FusibleChain(
        operators=[_name(trace, tree, stream, step) for step in steps[:_MOST_NAMES]],
        calls=len(steps),
        kernels=kernels,
        count=count,
        total_ns=total,
        gap_ns=int(stream.gap[between].sum()),
        bytes=None if moved is None else moved[0] * count,
        fused_bytes=None if moved is None else moved[1] * count,
        fused_bytes_keeping=None if moved is None else moved[2] * count,
        fused_ns=fused[0],
        fused_ns_keeping=fused[1],
        start_ns=int(stream.start[begin]) - origin,
        unknown_because=_why_unknown(moved, bandwidth),
    )


def _moved(
    work: OperatorWork, stream: _Stream, steps: list[int], shared: NDArray[np.int64]
) -> tuple[int, int, int] | None:
    """Bytes of one run: as it is, fused, and fused with every intermediate still written.

    ``None`` if one is unknown.
    """
    total = intermediate = 0
    for place, step in enumerate(steps):
        owner = int(stream.owner[step])
        if owner < 0 or not work.moved_known[owner]:
            return None
        total += int(work.moved[owner])
        if place + 1 < len(steps):
            between = int(shared[steps[place + 1] - 1])
            if between < 0:
                return None
            intermediate += between
    return total, max(total - 2 * intermediate, 0), max(total - intermediate, 0)


def _name(trace: Trace, tree: OperatorTree, stream: _Stream, step: int) -> str:
    code = int(stream.code[step])
    if code < len(tree.names):
        return tree.names[code]
    return str(trace.device_events["name"][int(stream.rows[step])])


def _why_unknown(moved: object, bandwidth: float | None) -> str | None:
    if moved is None:
        return "the shapes of an operator in it were not recorded, or its bytes are not known"
    return "the device's memory bandwidth is not known" if bandwidth is None else None


def _short_chains(stream: _Stream) -> ShortChains:
    """Runs of short events without a long one between them, however long the gaps are."""
    short = stream.duration < SHORT_NS
    joined: NDArray[Any] = stream.follows[:-1] & short[1:] & short[:-1]
    first = np.flatnonzero(short & ~np.append(False, joined)) if len(short) else np.zeros(0, np.intp)
    last = np.flatnonzero(short & ~np.append(joined, False)) if len(short) else first
    long_enough = last - first + 1 >= _SHORTEST_RUN
    first, last = first[long_enough], last[long_enough]
    busy = np.append(0, np.cumsum(stream.duration))
    gaps = np.append(0, np.cumsum(stream.gap)) if len(short) else busy
    length = last - first + 1
    return ShortChains(
        threshold_ns=SHORT_NS,
        at_least=_SHORTEST_RUN,
        count=len(first),
        kernels=int(length.sum()),
        busy_ns=int((busy[last + 1] - busy[first]).sum()),
        gap_ns=int((gaps[last] - gaps[first]).sum()),
        longest=int(length.max(initial=0)),
    )


@dataclass(frozen=True, slots=True)
class ChainEvents:
    """The device events of all fusible chains of a device.

    Their rows, the marks of those that begin a chain, and the share of each one's time that one kernel for the chain
    leaves.
    """

    row: NDArray[np.intp]
    first: NDArray[np.bool_]
    left: NDArray[np.float64]
    left_at_most: NDArray[np.float64]
    """``left`` assumes one read of the first operator's input and one write of the last one's result; this only saves
    the reads of intermediates.
    """
    costliest: list[str]

    def only(self, chosen: NDArray[np.bool_]) -> ChainEvents:
        """Those of the events that are chosen."""
        return ChainEvents(
            self.row[chosen], self.first[chosen], self.left[chosen], self.left_at_most[chosen], self.costliest
        )


def chain_events(
    trace: Trace,
    device: Device,
    tree: OperatorTree,
    work: OperatorWork,
    events: EventWork,
    classified: Classified,
    peak: Accelerator | None,
    *,
    calls: int = 2,
) -> ChainEvents | None:
    """The events behind the chains of at least ``calls`` calls; ``None`` where there are none."""
    stream = _in_stream_order(trace, device, tree, events, classified)
    fusible = _fusible(tree, work, stream, trace, classified)
    rows, firsts, left, most = [], [], [], []
    costliest: tuple[int, list[str]] = (0, [])
    for first, last, chain in _runs_and_chains(trace, tree, work, stream, fusible, peak, origin=0):
        # One repeated operator works on other tensors each time (gradients, buffers): nothing to fuse.
        if chain.total_ns <= 0 or chain.calls < calls or len(set(chain.operators)) == 1:
            continue
        if chain.fused_ns is None:
            # Without bytes: a chain that is bound by memory takes at least as long as its longest kernel.
            at_most = share = _longest_of(stream, first, last) / chain.total_ns
        else:
            at_most = chain.fused_ns / chain.total_ns
            ends = _ends_only(work, stream, int(first[0]), int(last[0]), peak) * chain.count
            share = min(ends / chain.total_ns, at_most)
        for begin, end in zip(first.tolist(), last.tolist(), strict=True):
            rows.append(stream.rows[begin : end + 1])
            firsts.append(np.arange(end + 1 - begin) == 0)
            left.append(np.full(end + 1 - begin, share))
            most.append(np.full(end + 1 - begin, at_most))
        if round(chain.total_ns * (1 - share)) > costliest[0]:
            costliest = (round(chain.total_ns * (1 - share)), chain.operators)
    if not rows:
        return None
    return ChainEvents(
        np.concatenate(rows), np.concatenate(firsts), np.concatenate(left), np.concatenate(most), costliest[1]
    )


def _longest_of(stream: _Stream, first: NDArray[np.intp], last: NDArray[np.intp]) -> int:
    """The sum over runs of the longest kernel in each."""
    return sum(
        int(stream.duration[begin : end + 1].max()) for begin, end in zip(first.tolist(), last.tolist(), strict=True)
    )


def _ends_only(work: OperatorWork, stream: _Stream, first: int, last: int, peak: Accelerator | None) -> float:
    """Nanoseconds of a kernel that reads the first call's inputs and writes the last one's result.

    Infinite where these are not known.
    """
    begin, end = int(stream.owner[first]), int(stream.owner[last])
    if begin < 0 or end < 0 or peak is None or peak.memory_bytes_per_s is None:
        return float("inf")
    read, written = work.calls[int(work.call_of[begin])].read_sizes, work.calls[int(work.call_of[end])].written
    if read is None or written is None:
        return float("inf")
    return (sum(read) + written) / (BANDWIDTH_SHARE * peak.memory_bytes_per_s) * 1e9
