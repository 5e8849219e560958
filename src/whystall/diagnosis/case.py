"""The input of rules: the traces of a run with their analyses, its graph, and the steps that samples measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState
from whystall.analysis.intervals import within
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.analysis.results import Step
from whystall.analysis.run_results import RunSummary
from whystall.analysis.steadiness import mean_step
from whystall.diagnosis import transfers
from whystall.diagnosis.finding import EvidenceEvent, Per
from whystall.diagnosis.noise import FEWEST_SPREAD, NOISE_OF_FEW, noise_of, standard_error
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.recording import Unrecorded, added_on_cpu, as_unrecorded, lengthening, scaled
from whystall.diagnosis.run_facts import RunFacts
from whystall.diagnosis.summarised import NONE, Summarised
from whystall.diagnosis.supply import supply_of
from whystall.replay.graph import Change, Graph, Mask, NodeKind, Played, Times, play
from whystall.replay.outcome import (
    Fidelity,
    Lanes,
    busy_ns,
    critical_path,
    fidelity,
    has_steps,
    lanes_of,
    length_ns,
    longest_ns,
    steady_steps,
    step_lengths_ns,
)
from whystall.replay.outcome import window_ns as replayed_window
from whystall.trace.columns import rows_by_value
from whystall.trace.link import HOST_TABLES, rows_of

_ALIKE: Final = 0.05
FEWEST_SAMPLED_STEPS: Final = 10
"""With fewer steps samples are no evidence about a run."""


@dataclass(frozen=True)
class Case:
    """Everything a diagnosis starts from. ``graph`` is ``None`` where there is no trace."""

    ranks: tuple[RankCase, ...] = ()
    runs: tuple[RunSummary, ...] = ()
    facts: RunFacts = field(default_factory=RunFacts)
    graph: Graph | None = None
    summarised: Summarised = NONE

    def sampled(self, rank: RankCase) -> RunSummary | None:
        """The samples of a rank's whole run, for a job without an accelerator, where host time is the time.

        A profiler slows small operators most: samples outweigh the trace.
        """
        if rank.on_device:
            return None
        return next((run for run in self.runs if run.rank == rank.rank and run.measured >= FEWEST_SAMPLED_STEPS), None)

    @property
    def may_be_pytorch(self) -> bool:
        """Whether no recording is of another framework's job."""
        return all(rank.trace.metadata.may_be_pytorch for rank in self.ranks)

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
    def startup(self) -> Mask:
        """The host's nodes that start something up, which no later step does again."""
        out = np.zeros(len(self.replayed.start), np.bool_)
        for rank in self.ranks:
            out |= self.nodes(rank, host=rank.startup) | self.host_within(rank, *rank.preparations)
        return out

    def length_ns(self, change: Change | None = None) -> int:
        """How long the replayed window takes under a change, start-up left out; no change is played twice."""
        if change is None:
            return self.window_ns
        return self._played_once(change)[0]

    def noise_after(self, change: Change) -> float:
        """The noise of a change's saving: that of the steps under it, or that of the share of each that it leaves.

        Longer steps are no noise if the change removes the excess, or leaves the same share of every step.
        """
        return self._played_once(change)[1]

    def _played_once(self, change: Change) -> tuple[int, float]:
        if change not in self._outcomes:
            self._outcomes[change] = self._outcome(change)
        return self._outcomes[change]

    @cached_property
    def _outcomes(self) -> WeakKeyDictionary[Change, tuple[int, float]]:
        return WeakKeyDictionary()

    def _outcome(self, change: Change | None) -> tuple[int, float]:
        """The length of the window under a change, and the noise of its steps."""
        share, played = self._steady
        if change is not None:
            change = change if share is None else scaled(self.replayed, change, share)
            played = play(self.replayed, change)
        length = length_ns(self.replayed, played)
        steps = step_lengths_ns(self.replayed, played)
        if change is not None:
            # A window may begin with the host ahead of its device, and a replay of few steps spends that lead.
            length = max(length, longest_ns(self._host_lanes, self._durations(change)))
            length = max(length, self._supplied_ns(change))
        # Streams are not known to overlap more than they were seen to: they share one device.
        length = max(length, self.left_on_devices_ns(change))
        if len(steps) < 2 or not steps.mean():
            return length, self.noise
        # Not by medians: they do not show an event of every other step.
        after = standard_error(steps, steps.mean()) if len(steps) >= FEWEST_SPREAD else self.noise
        if change is None:
            return length, after
        # The steps' own differences are no chance if the saving is the same share of each.
        before = step_lengths_ns(self.replayed, self._steady[1])
        return length, min(after, standard_error(steps - before * (steps.sum() / before.sum()), before.mean()))

    def _supplied_ns(self, change: Change) -> int:
        """The time in which the workers make the window's batches, if a change leaves the waits for them as they are.

        Asked for earlier, a batch is ready no earlier: workers that are waited for in nearly each step never rest.
        """
        durations, recorded = self._durations(change), self.replayed.duration
        left = (taken for nodes, taken in self._supplies if (durations[nodes] >= recorded[nodes]).all())
        return min(max(left, default=0), self.length_ns())

    @cached_property
    def _supplies(self) -> list[tuple[NDArray[np.intp], int]]:
        """For each rank that waits for workers in nearly all steps: its waiting nodes, and the time of the batches."""
        out = []
        for rank, found in ((rank, supply_of(rank)) for rank in self.ranks):
            if found is not None:
                waits = self.host_within(rank, found.begin, found.end) & self.host_state(rank, HostState.INPUT)
                out.append((np.flatnonzero(waits), found.taken_ns(*self.window_on(rank))))
        return [(nodes, taken) for nodes, taken in out if len(nodes)]

    @cached_property
    def _steady(self) -> tuple[NDArray[np.float64] | None, Played]:
        """The share of its time that each node keeps without start-up and recording, and the replay of that.

        ``None`` where there is no start-up, and the cost of recording is unknown.
        """
        if self.lengthening is not None:
            share = as_unrecorded(self.replayed, self.startup, 1 / self.lengthening)
        elif self.startup.any():
            share = np.where(self.startup, 0.0, 1.0)
        else:
            return None, self.base
        return share, play(self.replayed, scaled(self.replayed, Change(), share))

    @cached_property
    def lengthening(self) -> float | None:
        """The ratio of recorded steps to the others, for a job with an accelerator; ``None`` where it is unknown.

        Gains relate to the others: without recording the host takes less time, and devices take the same.
        """
        return lengthening([run for run in self.runs if run.measured >= FEWEST_SAMPLED_STEPS], self.ranks)

    @cached_property
    def unrecorded(self) -> Unrecorded | None:
        """The estimated unrecorded steps, where a job with accelerators has only a recording."""
        if self.graph is None or self.lengthening is not None or not any(rank.on_device for rank in self.ranks):
            return None
        return Unrecorded.of(self.graph, self.startup)

    def least_ns(self, change: Change) -> int:
        """The work of the busiest thread or stream in the window: in the long run no step is shorter."""
        share = self._steady[0]
        durations = self._durations(change if share is None else scaled(self.replayed, change, share))
        return max(longest_ns(self._host_lanes, durations), longest_ns(self._device_lanes, durations))

    def left_on_devices_ns(self, change: Change | None) -> int:
        """The time in the replayed window in which the busiest device does work that a change keeps.

        Communication counts where the rank is alone, and where none of the device's compute becomes shorter: between
        ranks it lasts until the others come, and behind less work it hides other work.
        """
        graph = self.replayed
        works = (graph.kind == NodeKind.DEVICE) & (graph.state != COMMUNICATION)
        stays = graph.kind == NodeKind.DEVICE
        if change is not None and change.duration is not None:
            stays &= np.asarray(change.duration) == graph.duration
        if len(self.ranks) > 1 or (works & ~stays).any():
            stays &= works
        window = self.replayed_window
        return max((busy_ns(graph, rows[stays[rows]], *window) for _, rows in self.device_rows), default=0)

    @cached_property
    def device_rows(self) -> list[tuple[RankCase, NDArray[np.intp]]]:
        """Per device its rank, and its nodes by start."""
        out = []
        for rank in self.ranks:
            rows = self.rows(rank, NodeKind.DEVICE)
            rows = rows[np.argsort(self.replayed.start[rows], kind="stable")]
            device = rank.trace.device_events["device"].to_numpy()[self.replayed.event[rows]]
            out += [(rank, rows[place]) for place in rows_by_value(device).values()]
        return out

    def _durations(self, change: Change) -> NDArray[np.int64]:
        return self.replayed.duration if change.duration is None else change.duration

    @cached_property
    def _host_lanes(self) -> Lanes:
        return lanes_of(self.replayed, self.in_window(self.replayed.kind == NodeKind.HOST))

    @cached_property
    def _device_lanes(self) -> Lanes:
        return lanes_of(self.replayed, self.in_window(self.replayed.kind == NodeKind.DEVICE))

    @cached_property
    def recorded_ns(self) -> int:
        """The recorded length of the replayed window."""
        return length_ns(self.graph, self.base) if self.graph is not None else 0

    @cached_property
    def window_ns(self) -> int:
        """The same without work of the start."""
        return self._outcome(None)[0] if self.graph is not None else 0

    @cached_property
    def steps(self) -> int:
        """How many steps the replayed window holds (1 without step marks)."""
        return steady_steps(self.graph) if self.graph is not None else 0

    @cached_property
    def has_steps(self) -> bool:
        """Whether the replayed window consists of steps; else amounts per step are those of the recording."""
        return self.graph is None or has_steps(self.graph)

    @property
    def per(self) -> Per:
        """The unit of the replayed window's amounts: a step, or the recording where no step is known."""
        return "step" if self.has_steps else "recording"

    @property
    def per_step(self) -> str:
        """The same unit in a sentence, such as "a step"."""
        return "a step" if self.has_steps else "in the recording"

    @cached_property
    def step_ns(self) -> int:
        """The mean length of a step; without steps that of the recording."""
        return self.window_ns // max(self.steps, 1)

    @cached_property
    def recording_ns(self) -> int:
        """How much longer a step of a job without an accelerator was because it was recorded; 0 where unknown.

        It compares with unrecorded steps: their mean may be shorter for other reasons, so no call of an operator counts
        as longer than recording it takes at most.
        """
        if len(self.ranks) != 1 or self.graph is None or not self.has_steps:
            return 0
        (rank,) = self.ranks
        run = self.sampled(rank)
        return 0 if run is None else added_on_cpu(run, rank, self.window_on(rank), self.step_ns, self.steps)

    def told_step_ns(self, rank: int | None) -> int:
        """The length of a step to report: that in a rank's ledger (`None`: the first's), if nearly the replay's.

        A device's steps begin and end with its work, and those of a replay with the host's marks: their means differ by
        a little, and two numbers would ask for a reason.
        """
        devices = [device for one in self.ranks if rank in (None, one.rank) for device in one.analysis.devices]
        mean = mean_step(devices[0].steps) if devices and self.has_steps else None
        alike = mean is not None and abs(mean.window_ns - self.step_ns) <= _ALIKE * self.step_ns
        return mean.window_ns if mean is not None and alike else self.step_ns

    @cached_property
    def fidelity(self) -> Fidelity:
        """How well the graph explains the recording."""
        if self.graph is None:
            return Fidelity(0, 0, 0)
        return fidelity(self.graph, self.base, self.path)

    @cached_property
    def path(self) -> NDArray[np.int64]:
        """The nodes of the critical path, from the end back."""
        return critical_path(self.replayed, self.base)

    @cached_property
    def noise(self) -> float:
        """The uncertainty of the mean step, as a share of it: MAD over the square root of the count."""
        found = [noise_of([step.window_ns for step in steps]) for steps in self._device_steps()]
        return max(found, default=NOISE_OF_FEW)

    def _device_steps(self) -> list[list[Step]]:
        return [device.steps for rank in self.ranks for device in rank.analysis.devices]

    def device_values(self, rank: RankCase, values: NDArray[Any], otherwise: float) -> NDArray[np.float64]:
        """Per node the value of its device event of a rank, else ``otherwise``."""
        graph = self.replayed
        out = np.full(len(graph.start), otherwise, np.float64)
        chosen = self.rows(rank, NodeKind.DEVICE)
        out[chosen] = values[graph.event[chosen]]
        return out

    def nodes(self, rank: RankCase, host: Mask | None = None, device: Mask | None = None) -> Mask:
        """The nodes of host events and device events of a rank, given as masks over its events."""
        graph = self.replayed
        out = np.zeros(len(graph.start), np.bool_)
        for kind, events in ((NodeKind.HOST, host), (NodeKind.DEVICE, device)):
            if events is not None and len(events):
                rows = self.rows(rank, kind)
                event = graph.event[rows]
                out[rows[(event >= 0) & events[np.clip(event, 0, len(events) - 1)]]] = True
        return out

    def rows(self, rank: RankCase, kind: NodeKind) -> NDArray[np.intp]:
        """The nodes of a rank of one kind, cached: with many ranks each search of the graph costs time."""
        key = (f"rows of {kind.name}", rank.rank)
        if key not in self.kept:
            self.kept[key] = np.flatnonzero((self.replayed.rank == rank.rank) & (self.replayed.kind == kind))
        found: NDArray[np.intp] = self.kept[key]
        return found

    def work_of(self, rank: RankCase, operators: Mask) -> Mask:
        """The nodes of the work of operators: device events that they launched, or their own time on a CPU."""
        if rank.on_device:
            operator = rows_of(rank.trace.device_events["operator"])
            return self.nodes(rank, device=(operator >= 0) & operators[np.maximum(operator, 0)])
        return self.own_time_of(rank, operators)

    def own_time_of(self, rank: RankCase, operators: Mask) -> Mask:
        """The host nodes of operators' own time, without that of operators and calls inside them."""
        host = np.zeros(rank.offsets[HOST_TABLES[-1]][1], np.bool_)
        first, last = rank.offsets["operators"]
        host[first:last] = operators
        return self.nodes(rank, host=host)

    def operator_values(self, rank: RankCase, values: NDArray[np.float64], otherwise: float) -> NDArray[np.float64]:
        """Per node the value of the operator whose work it is (as in `work_of`), else ``otherwise``."""
        if rank.on_device:
            operator = rows_of(rank.trace.device_events["operator"])
            return self.device_values(rank, np.append(values, otherwise)[operator], otherwise)
        graph = self.replayed
        first, last = rank.offsets["operators"]
        rows = self.rows(rank, NodeKind.HOST)
        own = rows[(graph.event[rows] >= first) & (graph.event[rows] < last)]
        out = np.full(len(graph.start), otherwise)
        out[own] = values[graph.event[own] - first]
        return out

    def host_state(self, rank: RankCase, *states: HostState) -> Mask:
        """The host nodes of a rank that are in one of some states."""
        graph, rows = self.replayed, self.rows(rank, NodeKind.HOST)
        chosen = np.zeros(len(graph.start), np.bool_)
        chosen[rows[np.isin(graph.state[rows], states)]] = True
        return chosen

    def host_within(self, rank: RankCase, begin: Times, end: Times) -> Mask:
        """The host nodes of a rank that begin in one of some intervals (on the rank's own clock)."""
        graph, rows = self.replayed, self.rows(rank, NodeKind.HOST)
        chosen = np.zeros(len(graph.start), np.bool_)
        chosen[rows[within(graph.own_times(rank.rank, graph.start[rows]), begin, end)]] = True
        return chosen

    def host_within_operators(self, rank: RankCase, operators: Mask | NDArray[np.int64]) -> Mask:
        """The host nodes of a rank that begin in one of some operator calls (a mask, or rows)."""
        table = rank.trace.operators
        begin = table["ts_ns"].to_numpy()[operators]
        return self.host_within(rank, begin, begin + table["duration_ns"].to_numpy()[operators])

    @cached_property
    def kept(self) -> dict[tuple[str, int], Any]:
        """Cached results that several rules share, by name and rank."""
        return {}

    @cached_property
    def transfer_of(self) -> NDArray[np.int64]:
        """For each node the transfer of a collective in which it meets other ranks, or -1."""
        return transfers.transfers_met(self.replayed)

    @cached_property
    def leaving(self) -> transfers.Leaving:
        """Transfers, and the later parts on ranks that leave later than the first."""
        return transfers.leaving(self.replayed)

    def with_transfers(self, nodes: Mask) -> Mask:
        """Collectives' nodes together with the transfers that all their ranks wait for."""
        return transfers.with_transfers(self.replayed, self.leaving, nodes)

    @cached_property
    def replayed_window(self) -> tuple[int, int]:
        """Begin and end of the replayed window, on the clock of the graph."""
        return replayed_window(self.replayed, self.base)

    def in_window(self, nodes: Mask) -> Mask:
        """Those of the nodes that begin in the replayed window."""
        graph = self.replayed
        begin, end = self.replayed_window
        chosen: Mask = nodes & (graph.start >= begin) & (graph.start < end)
        return chosen

    def window_on(self, rank: RankCase) -> tuple[int, int]:
        """Begin and end of the replayed window on a rank's own clock."""
        graph = self.replayed
        begin, end = graph.own_times(rank.rank, np.array(self.replayed_window, np.int64)).tolist()
        return begin, end

    def time_of(self, nodes: Mask) -> int:
        """The time that nodes take per step within the replayed window, start-up left out."""
        graph = self.replayed
        begin, end = self.replayed_window
        at = np.flatnonzero(nodes & ~self.startup)
        inside = np.minimum(graph.start[at] + graph.duration[at], end) - np.maximum(graph.start[at], begin)
        return int(np.maximum(inside, 0).sum()) // max(self.steps, 1)

    def usual_ns(self, rank: RankCase, nodes: Mask) -> float:
        """The time of nodes of a rank in its median step; with fewer than two steps their time in all."""
        graph, steps = self.replayed, rank.trace.steps
        chosen = np.flatnonzero(nodes)
        if len(steps) < 2:
            return float(graph.duration[chosen].sum())
        step = self.step_of(rank, chosen)
        inside = step >= 0
        time = np.bincount(step[inside], weights=graph.duration[chosen[inside]], minlength=len(steps))
        return float(np.median(time))

    def step_of(self, rank: RankCase, nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """The step of each of a rank's nodes, -1 outside; a device's are those of the steps that launched them."""
        graph = self.replayed
        step = rank.step_at(graph.own_times(rank.rank, graph.start[nodes]))
        on_device = graph.kind[nodes] == NodeKind.DEVICE
        launched_by = rank.trace.device_events["step"].fill_null(-1).to_numpy()
        step[on_device] = launched_by[graph.event[nodes[on_device]]]
        return step

    def without(self, nodes: Mask, factor: float | NDArray[np.float64] = 0.0) -> Change:
        """The change by which nodes take only a part of their time."""
        graph = self.replayed
        scaled, chosen = graph.duration.copy(), np.flatnonzero(nodes)
        factors = factor[chosen] if isinstance(factor, np.ndarray) else factor
        scaled[chosen] = np.floor(scaled[chosen] * factors)
        transfers.scale_leaving(graph, self.leaving, scaled)
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
