"""Token by token inference: one forward pass per step, eager or as a captured graph."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.accuracy.simulator.engine import Steps
from benchmarks.accuracy.simulator.training import Training, kernels_of


@dataclass(slots=True)
class Decoding(Training):
    """One rank's server loop."""

    def _step(self, step: int) -> Steps:
        main, host = self.main, self.job.host
        yield from main.work(host.per_step_ns / 2, "scheduler")
        if self.job.graphs:
            with main.frame("torch/cuda/graphs.py(140): replay"):
                yield from main.graph([*kernels_of(op for stage in self.stages for op in stage.forward)])
        else:
            sequences: list[list[int]] = []
            yield from self._stages(sequences)
        yield from self._items(host.items_per_step)
        yield from main.work(host.per_step_ns / 2, "scheduler")
        yield from self._after(step)
