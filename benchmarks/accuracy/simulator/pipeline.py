"""Pipeline parallelism: every rank has some of the layers; micro-batches go through them forwards, then backwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.accuracy.simulator.collectives import Meetings, collective
from benchmarks.accuracy.simulator.engine import Steps
from benchmarks.accuracy.simulator.host import COMPUTE_STREAM
from benchmarks.accuracy.simulator.job import Job
from benchmarks.accuracy.simulator.machine import BYTES_PER_ELEMENT
from benchmarks.accuracy.simulator.training import Training


def of_stage(job: Job, rank: int) -> Job:
    """The job as one stage sees it: its share of the layers, and a micro-batch as the batch."""
    parallel, model = job.parallel, job.transformer
    layers = parallel.stage_layers[rank] if parallel.stage_layers else model.layers // parallel.ranks
    micro = replace(model, layers=layers, batch=model.batch // parallel.micro_batches)
    return replace(job, model=micro)


@dataclass(slots=True)
class PipelineTraining(Training):
    """One stage's script: all forward passes, then all backward passes (GPipe)."""

    meetings: Meetings

    def __post_init__(self) -> None:
        """Keep the layers of this stage; the first has the embedding, the last the head and the loss."""
        Training.__post_init__(self)
        first, last = self.rank.rank == 0, self.rank.rank == self.job.parallel.ranks - 1
        self.stages = [
            stage
            for stage in self.stages
            if stage.block.startswith("Block_") or (first if stage.block.startswith("Embedding") else last)
        ]
        self._choose_optimizer()

    def _eager(self) -> Steps:
        main, rank, last = self.main, self.rank.rank, self.job.parallel.ranks - 1
        sequences: list[list[list[int]]] = []
        for _ in range(self.job.parallel.micro_batches):
            if rank > 0:
                yield from self._exchange(rank - 1, rank, "activation")
            sequences.append((yield from self._forward()))
            if rank < last:
                yield from self._exchange(rank, rank + 1, "activation")
        for passed in sequences:
            if rank < last:
                yield from self._exchange(rank + 1, rank, "gradient")
            yield from self._backward(passed, last=False)
            if rank > 0:
                yield from self._exchange(rank, rank - 1, "gradient")
        yield from self._optimize(main)

    def _exchange(self, sender: int, receiver: int, what: str) -> Steps:
        """Send to or receive from a neighbour; what is received is waited for by compute."""
        model, me = self.job.transformer, self.rank.rank
        elements = model.tokens * model.hidden
        group = f"{min(sender, receiver)}-{max(sender, receiver)}-{what}"
        moved = elements * BYTES_PER_ELEMENT[model.dtype]
        name = "send" if me == sender else "recv"
        meeting = self.meetings.next(group, me, "send", moved, members=2)
        stream = 24 + 4 * (receiver if me == sender else sender) + (what == "gradient") + 2 * (me == sender)
        ranks = [min(sender, receiver), max(sender, receiver)]
        event = yield from collective(
            self.main,
            name,
            elements,
            model.dtype,
            meeting,
            ranks,
            stream=stream,
            group=group,
            after_compute=me == sender,
        )
        if me == receiver:
            yield from self.main.wait_event(COMPUTE_STREAM, event)
