"""Runs a job on all its ranks and says how long its steps took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.simulator import kineto
from benchmarks.accuracy.simulator.collectives import Meetings
from benchmarks.accuracy.simulator.data_parallel import (
    DistributedDataParallel,
    ExpertParallel,
    FullyShardedDataParallel,
)
from benchmarks.accuracy.simulator.decode import Decoding
from benchmarks.accuracy.simulator.engine import Clock
from benchmarks.accuracy.simulator.host import Rank
from benchmarks.accuracy.simulator.job import Job
from benchmarks.accuracy.simulator.operators import Tensor
from benchmarks.accuracy.simulator.pipeline import PipelineTraining, of_stage
from benchmarks.accuracy.simulator.serving import Serving
from benchmarks.accuracy.simulator.strategy import Strategy
from benchmarks.accuracy.simulator.training import Training

FIRST_STEADY_STEP = 2


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulated job did."""

    job: Job
    ranks: tuple[Rank, ...]

    def step_starts(self, rank: int) -> list[int]:
        """Nanoseconds at which the first device event starts that each step launched."""
        starts: dict[int, int] = {}
        for activity in self.ranks[rank].device.activities:
            starts[activity.step] = min(starts.get(activity.step, activity.start_ns), activity.start_ns)
        return [starts[step] for step in sorted(starts)]

    def step_ns(self) -> float:
        """The mean of the steady steps (the third to the last but one), over ranks."""
        means = []
        for rank in range(len(self.ranks)):
            starts = self.step_starts(rank)
            means.append((starts[-1] - starts[FIRST_STEADY_STEP]) / (len(starts) - 1 - FIRST_STEADY_STEP))
        return sum(means) / len(means)

    def write(self, folder: Path, *, suffix: str = ".json.gz") -> list[Path]:
        """Write one trace per rank."""
        folder.mkdir(parents=True, exist_ok=True)
        hidden = frozenset({"cudaGraphLaunch"} if self.job.hidden_graph_launches else ())
        recording = kineto.Recording(
            self.job.parallel.ranks, tuple(self.groups()), self.job.sync_events, hidden, self.job.lost, self.job.bare
        )
        if self.job.one_file:
            path = folder / f"ranks.trace{suffix}"
            kineto.write_together(self.ranks, path, recording, labelled=self.job.one_file == "labelled")
            return [path]
        paths = [folder / f"rank{rank.rank}.trace{suffix}" for rank in self.ranks]
        for rank, path in zip(self.ranks, paths, strict=True):
            kineto.write(rank, path, recording)
        return paths

    def groups(self) -> list[dict[str, Any]]:
        """Process groups as ``distributedInfo`` lists them."""
        world = self.job.parallel.ranks
        named = {"0": list(range(world))}
        if self.job.parallel.kind == "pipeline":
            for first in range(world - 1):
                named |= {f"{first}-{first + 1}-{what}": [first, first + 1] for what in ("activation", "gradient")}
        return [
            {
                "pg_name": name,
                "pg_desc": "default_pg" if name == "0" else f"group_{name}",
                "backend_config": "cuda:nccl",
                "pg_size": len(members),
                "ranks": members,
            }
            for name, members in named.items()
        ]


def simulate(job: Job) -> Run:
    """Run a job; the same job gives the same run."""
    clock = Clock()
    parallel, machine = job.parallel, job.machine
    costs = replace(machine.costs, operator_scale=machine.costs.operator_scale * job.host.contention)
    machine = replace(machine, costs=costs)
    meetings = Meetings(parallel.ranks, machine.fabric.transfer_ns)
    ranks = []
    for number in range(parallel.ranks):
        offset = parallel.clock_offsets_ns[number] if parallel.clock_offsets_ns else 0
        rank = Rank(clock, number, machine, seed=job.seed, clock_offset_ns=offset)
        if number == parallel.slow_rank:
            rank.compute_scale = parallel.slow_rank_scale
        ranks.append(rank)
        clock.spawn(_script(job.on(number), rank, meetings).run())
    clock.run()
    return Run(job, tuple(ranks))


def _script(job: Job, rank: Rank, meetings: Meetings) -> Training:
    if job.kind == "serving":
        return Serving(job, rank, Strategy(), meetings)
    if job.kind == "decode":
        return Decoding(job, rank, Strategy())
    if job.parallel.kind == "pipeline":
        return PipelineTraining(of_stage(job, rank.rank), rank, Strategy(), meetings)
    return Training(job, rank, _strategy(job, rank, meetings))


def _strategy(job: Job, rank: Rank, meetings: Meetings) -> Strategy:
    blocks = [f"Block_{index}" for index in range(job.model.layers)]
    if job.parallel.kind == "ddp":
        return DistributedDataParallel(job, rank.rank, meetings)
    if job.parallel.kind == "fsdp":
        elements = sum(Tensor(shape).elements for shape in job.model.parameters()[3:]) // len(blocks)
        return FullyShardedDataParallel(job, rank.rank, meetings, blocks, elements)
    if job.parallel.kind == "expert":
        return ExpertParallel(job, rank, meetings, blocks)
    return Strategy()
