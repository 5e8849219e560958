"""What rules look at: the traces of a run with their analyses, its graph, and the steps that samples measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.efficiency import accelerator_of, tensor_core_use
from whystall.analysis.host_states import HostState
from whystall.analysis.hosts import training_thread
from whystall.analysis.kernel_classes import Classified, classify
from whystall.analysis.operators import OperatorTree, operator_tree
from whystall.analysis.results import RunSummary, Step
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.analysis.work import EventWork, OperatorWork, counted_operator_of, event_work, operator_work
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.finding import CodeLocation, EvidenceEvent
from whystall.hardware.accelerators import Accelerator
from whystall.replay.graph import Change, EdgeKind, Graph, Mask, NodeKind, Played, Times, play
from whystall.replay.outcome import Fidelity, fidelity, has_steps, length_ns, steady_steps
from whystall.replay.outcome import window_ns as replayed_window
from whystall.trace.columns import codes, distinct
from whystall.trace.link import HOST_TABLES, rows_of
from whystall.trace.model import Trace
from whystall.trace.steps import OPTIMIZER_STEP

# A frame of Python code as Kineto names it: "train.py(88): main".
_FRAME: Final = re.compile(r"^(?P<file>.+?\.py)\((?P<line>\d+)\): (?P<symbol>.+)$")
# Code of libraries, which a user does not change.
_LIBRARY: Final = re.compile(r"(^|/)(site-packages|dist-packages|torch|lib/python\d|<frozen)|^(threading|runpy)\.py")
_MOST_PLACES: Final = 3
# MAD to standard deviation for a normal distribution.
_MAD_TO_SIGMA: Final = 1.4826
# With fewer steps their spread says nothing; this is taken in its place.
_FEW_STEPS: Final = 3
_NOISE_OF_FEW: Final = 0.01


FEWEST_SAMPLED_STEPS: Final = 10
"""With fewer steps samples say nothing of a run."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What ``run.json`` says of a watched run that a diagnosis needs; ``None`` where it does not."""

    cores: int | None = None
    threads: int | None = None
    processes: int = 1
    loaders: tuple[dict[str, int | bool | None], ...] = ()
    profiled_over_unprofiled: float | None = None
    remedies: dict[str, float] = field(default_factory=dict)
    """Per cause what its remedies brought on this machine of what was predicted (`whystall verify`)."""
    experiments: tuple[Experiment, ...] = ()
    """What further runs with one thing changed showed (``whystall run --experiments``)."""


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Per device event of a trace: the operator call that counts for it, its family, and whether it uses tensor cores."""

    tree: OperatorTree
    work: OperatorWork
    events: EventWork
    classified: Classified
    family: NDArray[np.object_]
    could_use_tensor_cores: Mask
    uses_tensor_cores: Mask
    peak: Accelerator | None

    def dtype_of(self, dtype: str) -> Mask:
        """Which events belong to calls of a dtype."""
        if dtype not in self.work.dtypes or not len(self.work.dtype_of):
            return np.zeros(len(self.family), np.bool_)
        number = self.work.dtypes.index(dtype)
        owner = self.events.owner
        chosen: Mask = (owner >= 0) & (self.work.dtype_of[np.maximum(owner, 0)] == number)
        return chosen

    def transfer_ns(self) -> NDArray[np.float64]:
        """Per event the least time that moving its call's bytes takes; 0 where that is not known."""
        owner = self.events.owner
        speed = self.peak.memory_bytes_per_s if self.peak is not None else None
        if speed is None or not len(self.work.moved):
            return np.zeros(len(owner))
        moved = np.where(self.events.main, self.work.moved[np.maximum(owner, 0)], 0)
        return moved / speed * 1e9


@dataclass(frozen=True)
class RankCase:
    """One rank's trace and what was found in it."""

    rank: int
    trace: Trace
    analysis: TraceAnalysis

    @cached_property
    def offsets(self) -> dict[str, tuple[int, int]]:
        """Where each host table lies in the numbering of host events."""
        out, total = {}, 0
        for name in HOST_TABLES:
            out[name] = (total, total + len(getattr(self.trace, name)))
            total += len(getattr(self.trace, name))
        return out

    @cached_property
    def on_device(self) -> bool:
        """Whether the job used an accelerator."""
        return not self.trace.device_events.is_empty()

    @cached_property
    def training(self) -> int | None:
        """The thread that runs the steps."""
        return training_thread(self.trace)

    @cached_property
    def device_work(self) -> DeviceWork:
        """What the trace's device events did."""
        trace = self.trace
        classified = classify(trace.device_events)
        tree = operator_tree(trace)
        work = operator_work(trace, tree)
        events = event_work(trace, counted_operator_of(tree, work), work, classified)
        devices = [device for device in self.analysis.devices if device.kind != "cpu"]
        peak = accelerator_of(trace, devices[0]) if devices else None
        could, uses = tensor_core_use(classified)
        families = np.array([family or "" for family in classified.families], dtype=object)[classified.family_of]
        return DeviceWork(tree, work, events, classified, families, could, uses, peak)

    def host_named(self, test: Callable[[str], object], tables: Sequence[str] = HOST_TABLES) -> Mask:
        """Which host events (in their numbering) have a name that passes a test."""
        out = np.zeros(self.offsets[HOST_TABLES[-1]][1], np.bool_)
        for table in tables:
            first, last = self.offsets[table]
            names = getattr(self.trace, table)["name"]
            passed = np.array([bool(test(text)) for text in distinct(names)], np.bool_)
            if passed.any():
                out[first:last] = passed[codes(names)]
        return out

    def device_named(self, test: Callable[[str], object]) -> Mask:
        """Which device events have a name that passes a test."""
        names = self.trace.device_events["name"]
        passed = np.array([bool(test(text)) for text in distinct(names)], np.bool_)
        return passed[codes(names)] if len(passed) else np.zeros(len(names), np.bool_)

    def intervals(self, events: Mask) -> tuple[Times, Times, NDArray[np.int64]]:
        """Start, end and thread of host events, by start."""
        columns = [
            np.concatenate([getattr(self.trace, name)[column].to_numpy() for name in HOST_TABLES])
            for column in ("ts_ns", "duration_ns", "thread")
        ]
        start, duration, thread = (values[events] for values in columns)
        order = np.argsort(start, kind="stable")
        return start[order], (start + duration)[order], thread[order].astype(np.int64)

    @cached_property
    def optimizer_steps(self) -> tuple[Times, Times, NDArray[np.int64]]:
        """Start, end and thread of the steps of optimizers, as torch marks them."""
        return self.intervals(self.host_named(lambda name: bool(OPTIMIZER_STEP.search(name)), ("annotations",)))

    @cached_property
    def launch_time(self) -> Times:
        """Per device event when its launch began, or -1."""
        launch = rows_of(self.trace.device_events["launch"])
        start = np.append(self.trace.runtime_calls["ts_ns"].to_numpy(), -1)
        return np.where(launch >= 0, start[launch], -1)

    def launched_in(self, begin: Times, end: Times) -> Mask:
        """Which device events were launched within intervals that are sorted by start (from any thread)."""
        return within(self.launch_time, begin, end) & (self.launch_time >= 0)

    def code_of(self, operators: NDArray[np.intp], weight: NDArray[np.int64] | None = None) -> list[CodeLocation]:
        """The user's lines that called operators, the heaviest first; empty without Python stacks."""
        frames = self.trace.python_functions
        if frames.is_empty() or not len(operators):
            return []
        frame = rows_of(self.trace.operators["frame"])[operators]
        return self.places(frame, np.ones(len(frame), np.int64) if weight is None else weight)

    def places(self, frame: NDArray[np.int32], weight: NDArray[np.int64]) -> list[CodeLocation]:
        """The user's code around frames: of each the innermost frame that is no library's."""
        frames = self.trace.python_functions
        parent = rows_of(frames["parent"])
        texts = distinct(frames["name"])
        own = np.array([_is_own(text) for text in texts], np.bool_)[codes(frames["name"])]
        at = frame.copy()
        for _ in range(200):
            climb = (at >= 0) & ~own[np.maximum(at, 0)]
            if not climb.any():
                break
            at = np.where(climb, parent[np.maximum(at, 0)], at)
        sums: dict[str, int] = {}
        for row, value in zip(at.tolist(), weight.tolist(), strict=True):
            if row >= 0:
                name = frames["name"][row]
                sums[name] = sums.get(name, 0) + value
        ordered = sorted(sums, key=lambda name: (-sums[name], name))[:_MOST_PLACES]
        return [_location(name) for name in ordered]


def _is_own(name: str) -> bool:
    match = _FRAME.match(name)
    return match is not None and not _LIBRARY.search(match["file"])


def _location(name: str) -> CodeLocation:
    match = _FRAME.match(name)
    if match is None:
        return CodeLocation(file=name, line=None, symbol=None)
    return CodeLocation(file=match["file"], line=int(match["line"]), symbol=match["symbol"])


def within(instants: Times, begin: Times, end: Times) -> Mask:
    """Which instants lie in one of some intervals (which may overlap)."""
    return np.searchsorted(np.sort(begin), instants, side="right") > np.searchsorted(
        np.sort(end), instants, side="right"
    )


@dataclass(frozen=True)
class Case:
    """Everything a diagnosis starts from. ``graph`` is ``None`` where there is no trace."""

    ranks: tuple[RankCase, ...] = ()
    runs: tuple[RunSummary, ...] = ()
    facts: RunFacts = field(default_factory=RunFacts)
    graph: Graph | None = None

    def sampled(self, rank: RankCase) -> RunSummary | None:
        """The samples that measured the whole run of a rank of a job without an accelerator, where host time is the time.

        What a profiler does slows small operators most: what these say of a part goes before what a trace says.
        """
        if rank.on_device:
            return None
        return next((run for run in self.runs if run.rank == rank.rank and run.measured >= FEWEST_SAMPLED_STEPS), None)

    @property
    def replayed(self) -> Graph:
        """The graph, for rules that declare that they need a trace."""
        if self.graph is None:
            raise ValueError("there is no trace to replay")
        return self.graph

    @cached_property
    def base(self) -> Played:
        """The replay of the unchanged graph."""
        return play(self.replayed)

    @cached_property
    def window_ns(self) -> int:
        """The length of the replayed window."""
        return length_ns(self.graph, self.base) if self.graph is not None else 0

    @cached_property
    def steps(self) -> int:
        """How many steps the replayed window holds (1 without step marks)."""
        return steady_steps(self.graph) if self.graph is not None else 0

    @cached_property
    def has_steps(self) -> bool:
        """Whether the replayed window is of steps; else all that is said of a step is of the recording."""
        return self.graph is None or has_steps(self.graph)

    @cached_property
    def step_ns(self) -> int:
        """The mean length of a step; without steps that of the recording."""
        return self.window_ns // max(self.steps, 1)

    @cached_property
    def fidelity(self) -> Fidelity:
        """How well the graph explains the recording."""
        if self.graph is None:
            return Fidelity(0, 0, 0)
        return fidelity(self.graph, self.base)

    @cached_property
    def noise(self) -> float:
        """The uncertainty of the mean step, as a share of it: MAD over the square root of the count."""
        found = [_noise([step.window_ns for step in steps[1:-1]]) for steps in self._device_steps() if len(steps) > 2]
        return max([noise for noise in found if noise is not None], default=_NOISE_OF_FEW)

    def _device_steps(self) -> list[list[Step]]:
        return [device.steps for rank in self.ranks for device in rank.analysis.devices]

    def device_values(self, rank: RankCase, values: NDArray[Any], otherwise: float) -> NDArray[np.float64]:
        """Per node the value of its device event of a rank, else ``otherwise``."""
        graph = self.replayed
        out = np.full(len(graph.start), otherwise, np.float64)
        chosen = np.flatnonzero((graph.rank == rank.rank) & (graph.kind == NodeKind.DEVICE))
        out[chosen] = values[graph.event[chosen]]
        return out

    def nodes(self, rank: RankCase, host: Mask | None = None, device: Mask | None = None) -> Mask:
        """The nodes of host events and device events of a rank, given as masks over its events."""
        graph = self.replayed
        own = graph.rank == rank.rank
        out = np.zeros(len(graph.start), np.bool_)
        event = np.maximum(graph.event, 0)
        if host is not None and len(host):
            out |= (graph.kind == NodeKind.HOST) & (graph.event >= 0) & host[np.minimum(event, len(host) - 1)]
        if device is not None and len(device):
            out |= (graph.kind == NodeKind.DEVICE) & device[np.minimum(event, len(device) - 1)]
        chosen: Mask = out & own
        return chosen

    def work_of(self, rank: RankCase, operators: Mask) -> Mask:
        """The nodes of the work of operators: what they launched on a device, or their own time on a CPU."""
        if rank.on_device:
            operator = rows_of(rank.trace.device_events["operator"])
            return self.nodes(rank, device=(operator >= 0) & operators[np.maximum(operator, 0)])
        host = np.zeros(rank.offsets[HOST_TABLES[-1]][1], np.bool_)
        first, last = rank.offsets["operators"]
        host[first:last] = operators
        return self.nodes(rank, host=host)

    def host_state(self, rank: RankCase, *states: HostState) -> Mask:
        """The host nodes of a rank that are in one of some states."""
        graph = self.replayed
        chosen: Mask = (graph.rank == rank.rank) & (graph.kind == NodeKind.HOST) & np.isin(graph.state, states)
        return chosen

    def host_within(self, rank: RankCase, begin: Times, end: Times) -> Mask:
        """The host nodes of a rank that begin in one of some intervals (on the rank's own clock)."""
        graph = self.replayed
        own = (graph.rank == rank.rank) & (graph.kind == NodeKind.HOST)
        shift = graph.clock_shift_ns.get(rank.rank, 0)
        chosen: Mask = own & within(graph.start - shift, begin, end)
        return chosen

    def host_within_operators(self, rank: RankCase, operators: Mask | NDArray[np.int64]) -> Mask:
        """The host nodes of a rank that begin in one of some operator calls (a mask, or rows)."""
        table = rank.trace.operators
        begin = table["ts_ns"].to_numpy()[operators]
        return self.host_within(rank, begin, begin + table["duration_ns"].to_numpy()[operators])

    @cached_property
    def kept(self) -> dict[tuple[str, int], Any]:
        """What several rules ask for and one of them worked out, by its name and rank."""
        return {}

    @cached_property
    def transfer_of(self) -> NDArray[np.int64]:
        """Per node the transfer of a collective in which it meets other ranks, or -1."""
        graph = self.replayed
        out = np.full(len(graph.start), -1, np.int64)
        met = np.flatnonzero(graph.edge_kind == EdgeKind.RENDEZVOUS)
        met = met[graph.rank[graph.target[met]] == -1]
        out[graph.source[met].astype(np.int64)] = graph.target[met]
        return out

    def with_transfers(self, nodes: Mask) -> Mask:
        """Collectives' nodes together with the transfers that all their ranks wait for."""
        graph = self.replayed
        met = (graph.edge_kind == EdgeKind.RENDEZVOUS) & nodes[graph.source.astype(np.int64)]
        out = nodes.copy()
        out[graph.target[met]] = True
        return out

    def in_window(self, nodes: Mask) -> Mask:
        """Those of the nodes that begin in the replayed window."""
        graph = self.replayed
        begin, end = replayed_window(graph, self.base)
        chosen: Mask = nodes & (graph.start >= begin) & (graph.start < end)
        return chosen

    def window_on(self, rank: RankCase) -> tuple[int, int]:
        """Begin and end of the replayed window on a rank's own clock."""
        graph = self.replayed
        begin, end = replayed_window(graph, self.base)
        shift = graph.clock_shift_ns.get(rank.rank, 0)
        return begin - shift, end - shift

    def time_of(self, nodes: Mask) -> int:
        """The time that nodes take per step."""
        graph = self.replayed
        return int(graph.duration[self.in_window(nodes)].sum()) // max(self.steps, 1)

    def without(self, nodes: Mask, factor: float | NDArray[np.float64] = 0.0) -> Change:
        """The change by which nodes take only a part of their time."""
        graph = self.replayed
        scaled = np.where(nodes, np.floor(graph.duration * np.asarray(factor)).astype(np.int64), graph.duration)
        return Change(duration=scaled)

    def events_of(self, nodes: Mask, limit: int = 5) -> list[EvidenceEvent]:
        """The longest of the nodes, as events that evidence points to."""
        graph = self.replayed
        chosen = np.flatnonzero(self.in_window(nodes) & (graph.event >= 0))
        chosen = chosen[np.argsort(-graph.duration[chosen], kind="stable")][:limit]
        by_rank = {rank.rank: rank for rank in self.ranks}
        return [
            EvidenceEvent(
                rank=int(graph.rank[node]),
                ts_ns=int(graph.start[node]),
                duration_ns=int(graph.duration[node]),
                name=self.name_of(by_rank[int(graph.rank[node])], int(node)),
            )
            for node in chosen.tolist()
            if int(graph.rank[node]) in by_rank
        ]

    def name_of(self, rank: RankCase, node: int) -> str:
        """The name of a node's event."""
        graph = self.replayed
        event = int(graph.event[node])
        if graph.kind[node] != NodeKind.HOST:
            return str(rank.trace.device_events["name"][event])
        for table, (first, last) in rank.offsets.items():
            if first <= event < last:
                return str(getattr(rank.trace, table)["name"][event - first])
        return ""


def _noise(windows: list[int]) -> float | None:
    if len(windows) < _FEW_STEPS:
        return None
    values = np.array(windows, np.float64)
    middle = float(np.median(values))
    if middle <= 0:
        return None
    spread = float(np.median(np.abs(values - middle))) * _MAD_TO_SIGMA
    return spread / middle / float(np.sqrt(len(values)))
