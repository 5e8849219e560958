"""Causes on the host: launches, Python, synchronisation, garbage collection, allocation, copies, contention."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from whystall.analysis.host_states import ALLOCATOR_CALL, SYNC_CALL, HostState
from whystall.diagnosis.case import Case, RankCase, within
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.diagnosis.rules.collectives import lacks_a_stage
from whystall.diagnosis.rules.stretches import LONG_NS, long_python, recurrence, soft_nodes, stretch_ns
from whystall.replay.graph import LATENCY_NS, Change, EdgeKind, Mask, NodeKind, Nodes
from whystall.trace.link import rows_of

# What a CUDA graph leaves between two events (reference: causes.md, "kernel gap ~1 us").
_GRAPH_GAP_NS: Final = 1_000
_SHORT_KERNEL_NS: Final = 10_000
# What copies from pinned memory reach over PCIe 3, 4 and 5 with 16 lanes, by the device's compute capability; the
# lowest where that is not known. (reference: causes.md, "BW <12 GB/s (PCIe4)")
_PINNED_BYTES_PER_S: Final = ((9, 50e9), (8, 24e9), (0, 12e9))
_PINNED_CALL_NS: Final = 6_000
_LOADING_CALL: Final = re.compile(r"ModuleLoad|LibraryLoad|ModuleGetLoadingMode|LinkCreate|hiprtc|nvrtc", re.IGNORECASE)
# Python that calls many functions takes up to twice its time while a profiler records them.
_SLOWED_BY_PROFILER: Final = 0.5
# Below this share of the time it is not the device's work that hides what the host does.
_MOSTLY_BUSY: Final = 0.5
_COPY_CALL: Final = re.compile(r"Memcpy", re.IGNORECASE)
_SYNC_OPERATOR: Final = re.compile(
    r"^aten::(item|_local_scalar_dense|nonzero|is_nonzero|masked_select|_to_copy|unique|equal|_assert_async)"
)


def sync(case: Case) -> Iterator[Candidate]:
    """Calls in which the host waits for the device."""
    graph = case.replayed
    target = graph.target
    # How far the host could run ahead is for all stages to say.
    blind = lacks_a_stage(case)
    for rank in case.ranks:
        waits = (graph.edge_kind == EdgeKind.SYNC) & (graph.rank[target] == rank.rank)
        calls = _waiting_calls(case, rank, target[waits])
        if not calls.any():
            continue
        begin, end, _ = rank.intervals(calls)
        inside = case.host_within(rank, begin, end + 1)
        per_step = int(np.count_nonzero(case.in_window(_firsts(case, rank, calls)))) / max(case.steps, 1)
        names = _callers(rank, calls)
        waited = _waited_ns(case, rank, calls, target[waits])
        yield Candidate(
            cause="host.sync",
            attributed_ns=waited,
            evidence=(
                facts.count("calls per step in which the host waits for the device", per_step, case.events_of(inside)),
                facts.time("spent in them per step", waited),
                *(facts.text("called by", name) for name in names[:3]),
            ),
            expected=Change(removed_edges=waits),
            least=Change() if blind else None,
            method="replay: without the waits, the host runs ahead",
            tier=1,
            code=tuple(rank.code_of(_operators_with(rank, calls))),
            ranks=(rank.rank,),
            rivals=("host.launch-bound", "host.python", "input.synchronous-loader"),
            missing=() if rank.analysis.signals.get("sync_events") else ("synchronisation events",),
            confidence=0.95 if rank.analysis.signals.get("sync_events") else 0.85,
            hidden=_hidden(rank, f"the host waits for the device {_times(per_step)} a step"),
        )


def _waiting_calls(case: Case, rank: RankCase, after: Nodes) -> Mask:
    """The calls that wait by their nature, or that copied and waited for the copy: those in which waits ended.

    ``after`` are the nodes with which the host went on.
    """
    calls = rank.host_named(lambda name: bool(SYNC_CALL.search(name) or _COPY_CALL.search(name)), ("runtime_calls",))
    rows = np.flatnonzero(calls)
    first, _ = rank.offsets["runtime_calls"]
    table = rank.trace.runtime_calls
    begin = table["ts_ns"].to_numpy()[rows - first]
    end = begin + table["duration_ns"].to_numpy()[rows - first]
    ended = np.sort(case.replayed.start[after] - case.replayed.clock_shift_ns.get(rank.rank, 0))
    waited = np.searchsorted(ended, end, side="right") > np.searchsorted(ended, begin, side="right")
    calls[rows[~waited]] = False
    return calls


def _waited_ns(case: Case, rank: RankCase, calls: Mask, after: Nodes) -> int:
    """How long the host waited in calls, per step: from what it did last to what it went on with."""
    graph = case.replayed
    begin, end, _ = rank.intervals(calls)
    instants = graph.start - graph.clock_shift_ns.get(rank.rank, 0)
    goes_on = np.zeros(len(graph.start), np.bool_)
    goes_on[after] = True
    goes_on &= within(instants - 1, begin, end)
    goes_on = case.in_window(goes_on)
    edges = (graph.edge_kind == EdgeKind.PROGRAM) & goes_on[graph.target]
    source = graph.source[edges].astype(np.int64)
    waited = graph.start[graph.target[edges]] - (graph.start[source] + graph.duration[source])
    return int(waited.sum()) // max(case.steps, 1)


def _hidden(rank: RankCase, what: str) -> str:
    """What is said of something large whose removal gains nothing: the device is busy meanwhile, or idle all the same."""
    busy = max((device.busy_ns / max(device.window_ns, 1) for device in rank.analysis.devices), default=0.0)
    if busy >= _MOSTLY_BUSY:
        return f"{what}, but the device is busy meanwhile: leave it"
    return f"{what}, yet without that the device, busy {busy * 100:.1f} % of the time, would idle all the same"


def _times(per_step: float) -> str:
    return f"{per_step:.0f} times" if per_step >= 1.5 else "once"


def _firsts(case: Case, rank: RankCase, calls: Mask) -> Mask:
    """One node of each of some calls."""
    graph = case.replayed
    nodes = case.nodes(rank, host=calls)
    first = np.zeros(len(nodes), np.bool_)
    _, index = np.unique(graph.event[nodes], return_index=True)
    first[np.flatnonzero(nodes)[index]] = True
    return first


def _callers(rank: RankCase, calls: Mask) -> list[str]:
    """The operators in which calls were made, the most frequent first."""
    first, last = rank.offsets["runtime_calls"]
    operator = rows_of(rank.trace.runtime_calls["operator"])[calls[first:last]]
    counts: dict[str, int] = {}
    for row in operator[operator >= 0].tolist():
        name = rank.trace.operators["name"][row]
        counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


def collections(case: Case) -> Iterator[Candidate]:
    """Garbage collections of Python."""
    for rank in case.ranks:
        nodes = case.host_state(rank, HostState.GC)
        if not nodes.any():
            continue
        per_step = case.time_of(nodes)
        yield Candidate(
            cause="host.gc",
            attributed_ns=per_step,
            evidence=(
                facts.time("garbage collection per step", per_step, case.events_of(nodes)),
                facts.count("collections seen", int(np.count_nonzero(case.in_window(nodes)))),
            ),
            expected=case.without(nodes),
            method="replay: without the collections",
            recurrence=recurrence(
                case, rank, case.replayed.start[nodes] - case.replayed.clock_shift_ns.get(rank.rank, 0)
            ),
            ranks=(rank.rank,),
            uncertainty=0.1,
            rivals=("host.python",),
            hidden=_hidden(rank, "garbage collection takes time"),
        )


def python(case: Case) -> Iterator[Candidate]:
    """Long stretches of Python on the thread that launches, with nothing else going on."""
    for rank in case.ranks:
        nodes = long_python(case, rank) & ~_episodic(case, rank)
        if nodes.any():
            yield _python(case, rank, nodes)


def python_on_a_cpu(case: Case) -> Iterator[Candidate]:
    """The same in the steps of a job without an accelerator, outside the optimizer, which has a cause of its own.

    Samples of the whole run go before it. Where a trace shows launches, device events were lost; where it shows no
    operators in the steps, nobody knows what lies between them.
    """
    for rank in case.ranks:
        computing = case.in_window(case.host_state(rank, HostState.DISPATCH))
        if case.sampled(rank) is not None or rank.analysis.signals.get("launch_calls") or not computing.any():
            continue
        begin, end, _ = rank.optimizer_steps
        nodes = long_python(case, rank) & ~_episodic(case, rank) & ~case.host_within(rank, begin, end)
        if nodes.any():
            found = _python(case, rank, nodes)
            alike = (*found.could_be, "episodic.logging") if found.could_be else ()
            yield replace(found, uncertainty=_SLOWED_BY_PROFILER, hidden=None, could_be=alike)


def _python(case: Case, rank: RankCase, nodes: Mask) -> Candidate:
    graph = case.replayed
    per_step = case.time_of(nodes)
    first, last = rank.offsets["python_functions"]
    framed = nodes & (graph.event >= first) & (graph.event < last)
    rows = graph.event[framed] - first
    known = rank.analysis.signals.get("python_stacks")
    return Candidate(
        cause="host.python",
        detail="" if known else "its own work or its garbage collection, which only Python stacks tell apart",
        attributed_ns=per_step,
        evidence=(
            facts.time("Python between operators per step, in long stretches", per_step, case.events_of(nodes)),
            facts.count("such stretches per step", case_count(case, nodes)),
        ),
        expected=case.without(nodes),
        method="replay: without the stretches of Python",
        code=tuple(rank.places(rows.astype(np.int32), graph.duration[framed])),
        ranks=(rank.rank,),
        uncertainty=0.2,
        confidence=0.9 if known else 0.75,
        missing=() if known else ("Python stacks",),
        could_be=() if known else ("host.gc",),
        rivals=("host.launch-bound", "host.sync", "input.synchronous-loader"),
        hidden=_hidden(rank, "Python takes a large part of the host's time"),
    )


def case_count(case: Case, nodes: Mask) -> float:
    """How many of the nodes there are per step."""
    return int(np.count_nonzero(case.in_window(nodes))) / max(case.steps, 1)


_EPISODE: Final = re.compile(r"save|checkpoint|logg|print|evaluat|validat|wandb|tensorboard|fsync", re.IGNORECASE)


def _episodic(case: Case, rank: RankCase) -> Mask:
    """What lies in annotations or calls that other rules speak of: checkpoints, logging, evaluation."""
    named = rank.host_named(lambda name: bool(_EPISODE.search(name)), ("annotations", "python_functions"))
    begin, end, _ = rank.intervals(named)
    return case.host_within(rank, begin, end)


def launch_bound(case: Case) -> Iterator[Candidate]:
    """A device that waits for the host to launch its many small kernels."""
    blind = lacks_a_stage(case)
    for rank in case.ranks:
        for device in rank.analysis.devices:
            if device.kind == "cpu" or not device.gpu_events:
                continue
            median = _median_event_ns(rank, device.device)
            late = device.ledger.idle_launch + device.ledger.idle_dispatch + device.ledger.idle_python
            if median > _SHORT_KERNEL_NS * 2:
                continue
            soft = soft_nodes(case, rank)
            short = soft & (stretch_ns(case, soft) < LONG_NS)
            work = case.host_state(rank, HostState.DISPATCH, HostState.LAUNCH) | short
            steps = max(len(device.steps), 1)
            yield Candidate(
                cause="host.launch-bound",
                attributed_ns=late // steps,
                evidence=(
                    facts.count("device events per step", device.gpu_events / steps),
                    facts.time("median length of one", median),
                    facts.share("device idle because the host was late", late / max(device.window_ns, 1)),
                ),
                expected=replace(case.without(work), lag=_graph_gaps(case)),
                least=Change() if blind else None,
                ceiling=replace(case.without(work), lag=_graph_gaps(case), delay=_no_latency(case)),
                method="replay: all launches of a step at once, as from a CUDA graph",
                ranks=(rank.rank,),
                uncertainty=0.25,
                confidence=0.9,
                tier=2,
                rivals=("host.python", "host.sync", "input.synchronous-loader"),
                hidden=None,
            )


def _graph_gaps(case: Case) -> np.ndarray:
    """The lags of edges with the events of a stream as close as a CUDA graph puts them."""
    graph = case.replayed
    return np.where(graph.edge_kind == EdgeKind.STREAM, np.minimum(graph.lag, _GRAPH_GAP_NS), graph.lag)


def _no_latency(case: Case) -> np.ndarray:
    """The delays of nodes without what the device itself adds between two events."""
    graph = case.replayed
    small = (graph.kind == NodeKind.DEVICE) & (graph.delay <= LATENCY_NS)
    return np.where(small, np.minimum(graph.delay, 0), graph.delay)


def _median_event_ns(rank: RankCase, device: int) -> int:
    events = rank.trace.device_events
    own = events.filter((events["device"] == device) & (events["kind"] == "kernel"))
    return int(own["duration_ns"].median() or 0)  # type: ignore[arg-type]


def allocator(case: Case) -> Iterator[Candidate]:
    """Device memory allocated and freed in steady steps."""
    graph = case.replayed
    for rank in case.ranks:
        nodes = case.host_state(rank, HostState.ALLOCATOR)
        if not case.in_window(nodes).any():
            continue
        calls = rank.host_named(lambda name: bool(ALLOCATOR_CALL.search(name)), ("runtime_calls",))
        begin, end, _ = rank.intervals(calls)
        target = graph.target
        waits = (graph.edge_kind == EdgeKind.SYNC) & case.host_within(rank, begin, end + 1)[target]
        frees = rank.host_named(
            lambda name: bool(re.search(r"^(cuda|hip)Free$|MemFree|MemUnmap", name)), ("runtime_calls",)
        )
        retries = int(np.count_nonzero(case.in_window(case.nodes(rank, host=frees)))) > case.steps // 2
        per_step = case.time_of(nodes)
        yield Candidate(
            cause="memory.allocator-retry" if retries else "host.allocator",
            attributed_ns=per_step,
            evidence=(
                facts.time("in calls that allocate or free device memory, per step", per_step, case.events_of(nodes)),
                facts.count("such calls per step", case_count(case, _firsts(case, rank, calls))),
            ),
            expected=replace(case.without(nodes), removed_edges=waits),
            method="replay: without the calls",
            code=tuple(rank.code_of(_operators_with(rank, calls))),
            ranks=(rank.rank,),
            rivals=("host.launch-bound", "host.sync", "host.python"),
            hidden=_hidden(rank, "device memory is allocated in every step"),
        )


def warm_up(case: Case) -> Iterator[Candidate]:
    """Libraries that load code in the recorded steps, which later steps do not do."""
    for rank in case.ranks:
        calls = rank.host_named(lambda name: bool(_LOADING_CALL.search(name)), ("runtime_calls",))
        begin, _, _ = rank.intervals(calls)
        if not len(begin):
            continue
        nodes = case.nodes(rank, host=calls)
        per_step = case.time_of(nodes)
        yield Candidate(
            cause="host.warm-up",
            attributed_ns=per_step,
            evidence=(
                facts.time("in calls that load code, per recorded step", per_step, case.events_of(nodes)),
                facts.count("such calls in the recording", len(begin)),
            ),
            expected=case.without(nodes),
            method="replay: without the calls",
            code=tuple(rank.code_of(_operators_with(rank, calls))),
            ranks=(rank.rank,),
            rivals=("host.launch-bound", "host.allocator"),
        )


def _operators_with(rank: RankCase, calls: Mask) -> np.ndarray:
    first, last = rank.offsets["runtime_calls"]
    operator = rows_of(rank.trace.runtime_calls["operator"])[calls[first:last]]
    return np.unique(operator[operator >= 0])


def pageable_copy(case: Case) -> Iterator[Candidate]:
    """Copies from pageable memory to the device, which block the host and are slow."""
    graph = case.replayed
    for rank in case.ranks:
        copies = rank.device_named(lambda name: "HtoD" in name and "ageable" in name)
        if not copies.any():
            continue
        nodes = case.nodes(rank, device=copies)
        launch = rows_of(rank.trace.device_events["launch"])[copies]
        calls = np.zeros(rank.offsets["runtime_calls"][1], np.bool_)
        calls[launch[launch >= 0] + rank.offsets["runtime_calls"][0]] = True
        call_nodes = case.nodes(rank, host=calls)
        begin, end, _ = rank.intervals(calls)
        waits = (graph.edge_kind == EdgeKind.SYNC) & case.host_within(rank, begin, end + 1)[graph.target]
        size = rank.trace.device_events["bytes"].fill_null(0).to_numpy()[graph.event[nodes]]
        duration = graph.duration.copy()
        duration[nodes] = np.minimum(duration[nodes], (size / _pinned_bytes_per_s(rank) * 1e9).astype(np.int64))
        duration[call_nodes] = np.minimum(duration[call_nodes], _PINNED_CALL_NS)
        gone = duration.copy()
        gone[nodes] = 0
        per_step = case.time_of(nodes)
        moved = int(size.sum())
        speed = moved / max(int(graph.duration[nodes].sum()), 1) * 1e9
        yield Candidate(
            cause="host.pageable-copy",
            attributed_ns=per_step,
            evidence=(
                facts.time("copies from pageable memory per step", per_step, case.events_of(nodes)),
                facts.bandwidth("their bandwidth", speed),
            ),
            expected=Change(duration=duration, removed_edges=waits),
            ceiling=Change(duration=gone, removed_edges=waits),
            method="replay: copies at the speed of pinned memory, without blocking the host",
            code=tuple(rank.code_of(_operators_with(rank, calls))),
            ranks=(rank.rank,),
            uncertainty=0.25,
            rivals=("host.sync", "input.synchronous-loader"),
            hidden="copies come from pageable memory, but nothing waits for them: leave it",
        )


def _pinned_bytes_per_s(rank: RankCase) -> float:
    majors = [device.compute_capability[0] for device in rank.trace.metadata.devices if device.compute_capability]
    major = max(min(majors, default=0), 0)  # a damaged trace may say less
    return next(rate for least, rate in _PINNED_BYTES_PER_S if major >= least)


RULES: Final = (
    Rule("host.sync", ("trace", "device", "launch_calls"), sync),
    Rule("host.gc", ("trace",), collections),
    Rule("host.python", ("trace", "device", "launch_calls"), python),
    Rule("host.python", ("trace", "cpu_only", "operators", "steps"), python_on_a_cpu),
    Rule("host.launch-bound", ("trace", "device", "launch_calls"), launch_bound),
    Rule("host.allocator", ("trace", "device", "launch_calls"), allocator),
    Rule("host.warm-up", ("trace", "device", "launch_calls"), warm_up),
    Rule("host.pageable-copy", ("trace", "device", "launch_calls"), pageable_copy),
)
