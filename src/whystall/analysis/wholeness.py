"""Gaps in a recording that holds some events of a kind: thinned operators, launches, graphs' kernels.

The report states a gap first, and the signal counts as absent, so that the remaining events prove nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.runtime_calls import is_call
from whystall.vocabulary.signals import Signal

# Fewer launches, or numbers, do not show the usual state.
_FEWEST: Final = 20
_FEWEST_NUMBERS: Final = 3
_MOST: Final = 0.5
# Some launches are refused or belong to another device: more without a kernel were lost.
_MOST_UNSEEN: Final = 0.05
_NEARLY_ALL: Final = 0.9
_INDEXED: Final = ("operators", "annotations", "python_functions", "memory_events")


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that a recording lacks: the signals that it makes void, and a sentence."""

    voids: tuple[Signal, ...]
    sentence: str


def gaps_of(trace: Trace) -> list[Gap]:
    """All that a trace visibly lacks."""
    found = (
        _unseen_device(trace),
        _thinned_operators(trace),
        _unseen_graphs(trace),
        _unseen_kernels(trace),
        _launchless(trace),
        _clocks_apart(trace),
    )
    return [gap for gap in found if gap is not None]


_UNSEEN_DEVICE: Final = (
    "the device was not recorded. Record with ProfilerActivity.CUDA; whystall doctor checks whether CUPTI or roctracer "
    "works on this machine"
)
# Calls are recorded only where the device was asked for.
_SILENT_DEVICE: Final = (
    "the device was not recorded, though its launches were. The device's tracer (CUPTI, roctracer) gave nothing: it "
    "may be older than the driver, another profiler may hold it, or it may lack permission (WSL, containers); "
    "whystall doctor checks it on this machine"
)
_UNSEEN_MPS: Final = (
    "Apple's GPU, which torch's profiler does not record. Times are those of the host, which runs ahead of it; "
    "torch.mps.profiler.profile() records the GPU for Instruments"
)
# The operators that torch has for Apple's GPU alone (aten/src/ATen/native/native_functions.yaml).
_ON_MPS: Final = re.compile(
    r"^aten::_?(mps_|lstm_mps)|^aten::\w+_for_mps$|^(autograd::engine::evaluate_function: )?(Lstm)?Mps\w*Backward"
)


@dataclass(frozen=True, slots=True)
class UnseenDevice:
    """Work of a device in a recording without any device event: its number of calls, and a sentence."""

    calls: int
    sentence: str


def unseen_device(trace: Trace) -> UnseenDevice | None:
    """The work of a device that a recording does not show; ``None`` where there is none, or some is shown."""
    if not trace.device_events.is_empty():
        return None
    calls = int(matching(trace.runtime_calls["name"], lambda name: is_call(name, "launch", "graph")).sum())
    if calls:
        return UnseenDevice(calls, f"{calls:,} launches but no device event: {_SILENT_DEVICE}")
    on_mps = int(matching(trace.operators["name"], _ON_MPS.match).sum())
    return UnseenDevice(on_mps, f"{on_mps:,} operators worked on {_UNSEEN_MPS}") if on_mps else None


def _unseen_device(trace: Trace) -> Gap | None:
    """Work for a device, or a device among the properties, without one event of it: no job on a CPU."""
    unseen = unseen_device(trace)
    if unseen is not None:
        return Gap((), unseen.sentence)
    named = next((one.name for one in trace.metadata.devices if one.name), None)
    host_alone = trace.device_events.is_empty() and trace.operators.is_empty() and not trace.annotations.is_empty()
    if named is None or not host_alone:
        return None
    return Gap((), f"only annotations were recorded of a job on {named}: {_UNSEEN_DEVICE}")


def _unseen_kernels(trace: Trace) -> Gap | None:
    """Kernel launches without kernels, outside captures of graphs, which run nothing."""
    lost, launches = _lost_launches(trace)
    count, whole = int(lost.sum()), int(launches.sum())
    if not count:
        return None
    at, seen = trace.runtime_calls["ts_ns"].to_numpy(), _launching(trace)
    last = int(at[launches & seen].max()) if (launches & seen).any() else -1
    late = int((at[lost] > last).sum())
    if late >= _NEARLY_ALL * count:
        return Gap((), f"{late:,} of {whole:,} launches are without a kernel: the recording ended before they ran")
    return Gap(
        (),
        f"{count:,} of {whole:,} launches have no kernel: these kernels were not recorded, and the device worked in "
        "some of the time that looks idle",
    )


def _lost_launches(trace: Trace) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The calls that launched a kernel that is not in the file (none where they are few), and all that launched one."""
    calls = trace.runtime_calls
    none = np.zeros(len(calls), np.bool_)
    if trace.device_events.is_empty() or calls.is_empty():
        return none, none
    launches = matching(calls["name"], lambda name: is_call(name, "kernel"))
    begins = calls["ts_ns"].to_numpy()[matching(calls["name"], lambda name: is_call(name, "capture_begin"))]
    ends = calls["ts_ns"].to_numpy()[matching(calls["name"], lambda name: is_call(name, "capture_end"))]
    at = calls["ts_ns"].to_numpy()
    captured = np.searchsorted(np.sort(begins), at) > np.searchsorted(np.sort(ends), at)
    launches &= ~captured
    lost = launches & ~_launching(trace)
    whole = int(launches.sum())
    # A kernel without a launch lost the number that links both.
    unlinked = int((rows_of(trace.device_events["launch"]) < 0).sum())
    if whole < _FEWEST or int(lost.sum()) - unlinked <= _MOST_UNSEEN * whole:
        return none, launches
    return lost, launches


@dataclass(frozen=True, slots=True)
class UnseenKernels:
    """The launches without a kernel, and the time without device events in which these kernels may have run."""

    launches: int
    without: int
    idle_ns: int


def unseen_kernels(trace: Trace) -> UnseenKernels | None:
    """The launches whose kernels were not recorded between others that were; ``None`` where there are hardly any.

    A kernel runs after events launched before it, and before events launched after it: the part of the time in between
    without a device event may be its own.
    """
    lost, launches = _lost_launches(trace)
    if int(lost.sum()) < _FEWEST:  # a profiler loses whole buffers
        return None
    events = trace.device_events.sort("ts_ns")
    begin = events["ts_ns"].to_numpy()
    end = np.maximum.accumulate(begin + events["duration_ns"].to_numpy())
    called = trace.runtime_calls["ts_ns"].to_numpy()
    launch = rows_of(events["launch"])
    linked = launch >= 0
    if not linked.any():
        return None
    order = np.argsort(called[launch[linked]], kind="stable")
    asked = called[launch[linked]][order]
    # Events launched before an instant have ended, and none launched after it has begun.
    ended = np.maximum.accumulate(end[linked][order])
    begun = np.minimum.accumulate(begin[linked][order][::-1])[::-1]
    after = np.searchsorted(asked, called[lost])
    between = (after > 0) & (after < len(asked))
    gaps = np.unique(np.stack([ended[after[between] - 1], begun[after[between]]]), axis=1)
    gaps = gaps[:, gaps[0] < gaps[1]]
    idle = _idle_within(begin, end, gaps)
    return UnseenKernels(int(launches.sum()), int(lost.sum()), idle)


def _idle_within(begin: NDArray[np.int64], end: NDArray[np.int64], spans: NDArray[np.int64]) -> int:
    """The time in some spans, which do not overlap, between events by begin (``end``: the latest so far)."""
    first, last = end[:-1], begin[1:]
    free = last > first
    total = np.concatenate(([0], np.cumsum(np.where(free, last - first, 0))))

    def until(at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The idle time before an instant."""
        place = np.searchsorted(first, at, side="right") - 1
        known = np.maximum(place, 0)
        within = np.clip(at - first[known], 0, np.maximum(last[known] - first[known], 0))
        return np.where(place >= 0, total[known] + within, 0)

    return int((until(spans[1]) - until(spans[0])).sum()) if len(first) else 0


def shows_work_of_host(trace: Trace) -> bool:
    """Whether a stretch of a thread without an event is Python.

    That is unknown where most operators were left out, where the host recorded only its calls of the runtime, and where
    the framework launches from threads of its own: those of XLA run no Python.
    """
    if not trace.metadata.may_be_pytorch:
        return False
    if not trace.python_functions.is_empty():
        return True
    recorded = not (trace.operators.is_empty() and trace.annotations.is_empty())
    return recorded and _thinned_operators(trace) is None


def _thinned_operators(trace: Trace) -> Gap | None:
    """Operators most of which were left out.

    The profiler counts its events: where most numbers are missing and most launches lie in no operator, the operators
    are among the missing events. (Frames that were left out leave gaps in the numbers too, but no launch alone.)
    """
    operators = trace.operators
    if operators.is_empty() or not operators["event_index"].is_not_null().any():
        return None
    calls = _launching(trace)
    outside = int((trace.runtime_calls["operator"].is_null().to_numpy() & calls).sum())
    count = int(calls.sum())
    if count < _FEWEST or outside <= _MOST * count:
        return None
    kept = _kept_share(trace)
    if kept is None or kept >= 1 - _MOST:
        return None
    return Gap(
        ("operators", "shapes", "forward_backward_links"),
        f"most operators were left out: of the events that the profiler numbered some {kept:.0%} are in the file, and "
        f"{outside:,} of {count:,} launches lie in no operator; the host's activity and the kernels' work are not "
        f"derived from the rest",
    )


def _kept_share(trace: Trace) -> float | None:
    """The share of numbered events in the file: one over the usual distance of two numbers; ``None``: too few."""
    parts = [getattr(trace, table)["event_index"].cast(pl.Int64) for table in _INDEXED]
    numbers = pl.concat(parts).drop_nulls().unique().sort().to_numpy()
    if len(numbers) < _FEWEST_NUMBERS:
        return None
    # the mean of the middle half: a few numbers of other counters lie far away
    apart = np.sort(np.diff(numbers))
    middle = apart[len(apart) // 4 : len(apart) - len(apart) // 4]
    return 1 / float(middle.mean())


@dataclass(frozen=True, slots=True)
class UnseenGraphs:
    """How many launches of graphs there are, and how many of them have no device event."""

    launches: int
    without: int


def graphs_without_kernels(trace: Trace) -> UnseenGraphs | None:
    """The launches of graphs where of most of them nothing was recorded that they ran; else ``None``."""
    graphs = matching(trace.runtime_calls["name"], lambda name: is_call(name, "graph"))
    found = UnseenGraphs(int(graphs.sum()), int((graphs & ~_launching(trace)).sum()))
    lost = found.launches and found.without > _MOST * found.launches
    return found if lost and not trace.device_events.is_empty() else None


def _unseen_graphs(trace: Trace) -> Gap | None:
    found = graphs_without_kernels(trace)
    if found is None:
        return None
    return Gap(
        (),
        f"{found.without:,} of {found.launches:,} launches of graphs show no kernel: what graphs ran was not recorded, "
        "and the device was not idle where it looks so",
    )


def _clocks_apart(trace: Trace) -> Gap | None:
    """Kernels that begin before they are launched: the clocks of host and device differ."""
    launch = rows_of(trace.device_events["launch"])
    linked = launch >= 0
    asked = trace.runtime_calls["ts_ns"].to_numpy()[launch[linked]]
    early = asked - trace.device_events["ts_ns"].to_numpy()[linked]
    count, whole = int((early > 0).sum()), int(linked.sum())
    if whole < _FEWEST or count <= _MOST_UNSEEN * whole:
        return None
    return Gap(
        ("launch_calls",) if count > _MOST * whole else (),
        f"{count:,} of {whole:,} device events begin before their launch, by up to {early.max() / 1e3:,.3g} us: the "
        "clocks of host and device differ by at least that, so shorter waits between the two are unknown",
    )


def _launchless(trace: Trace) -> Gap | None:
    """Device events without their launch calls."""
    events = trace.device_events
    launch = rows_of(events["launch"])
    lost = launch < 0
    count = int(lost.sum())
    if not count or trace.runtime_calls.is_empty():
        return None
    known = launch[~lost]
    first = int(trace.runtime_calls["ts_ns"].to_numpy()[known].min()) if len(known) else np.iinfo(np.int64).max
    early = int((lost & (events["ts_ns"].to_numpy() < first)).sum())
    before = f", {early:,} of which began before the first launch that was recorded" if early and len(known) else ""
    voids: tuple[Signal, ...] = ("launch_calls",) if count > _MOST * len(events) else ()
    return Gap(
        voids,
        f"{count:,} of {len(events):,} device events have no launch call in the file{before}: why the device waited "
        "for them is not known",
    )


def _launching(trace: Trace) -> NDArray[np.bool_]:
    """Which runtime calls launched a device event."""
    out = np.zeros(len(trace.runtime_calls), np.bool_)
    launch = rows_of(trace.device_events["launch"])
    out[launch[launch >= 0]] = True
    return out
