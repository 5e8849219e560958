"""The facts about a watched run that rules need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from whystall.analysis.run_results import Environment
from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.frameworks import Trainer
from whystall.run_folder.description import PythonTool
from whystall.run_folder.observations import MadeAt, Observations, PaddedBatches, all_padding
from whystall.trace.readers.execution_trace import ExecutionTrace

_NONE: Final = Observations()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The part of a watched run's ``run.json`` that a diagnosis needs; ``None`` for a missing fact."""

    cores: int | None = None
    """Those that a rank might use."""
    threads: int | None = None
    processes: int = 1
    """All ranks of the job."""
    cores_here: int | None = None
    """Cores that the ranks of one machine may use together; ``None``: those of one rank."""
    ranks_here: int | None = None
    """The ranks of that machine; ``None``: all."""
    bound: bool = False
    """Whether each of them has cores of its own."""
    loaders: tuple[dict[str, int | bool | None], ...] = ()
    profiled_over_unprofiled: float | None = None
    observed: Mapping[int, Observations] = field(default_factory=dict)
    """Observations of each rank."""
    values: dict[int, ExecutionTrace] = field(default_factory=dict)
    """Per rank which tensors the operators of three steps were given."""
    python_tools: tuple[PythonTool, ...] = ()
    """Tools that traced Python while the job ran."""
    trainer: Trainer | None = None
    """The library that runs the loop, where the user's script does not."""
    settings: dict[str, tuple[MadeAt, ...]] = field(default_factory=dict)
    """Where the program gives the settings that causes' entries name."""
    environment: Environment | None = None
    """The job's environment; ``None`` where it is unknown."""
    samples_per_step: int | None = None
    """Samples that a loader handed out for a step of one rank."""
    command: str | None = None
    """The job's command as one types it; ``None``: not known."""
    began_unix_ns: int | None = None
    job: WholeJob | None = None
    """When the job began."""
    remedies: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The least and the largest ratio of real to predicted gain of each cause's remedies here (`whystall verify`)."""
    experiments: tuple[Experiment, ...] = ()
    """Results of further runs with one thing changed (``whystall run --experiments``)."""

    def of_rank(self, rank: int) -> Observations:
        """The observations of a rank; empty ones where it made none."""
        return self.observed.get(rank, _NONE)

    @property
    def padding(self) -> PaddedBatches | None:
        """The padding of all ranks together; ``None`` where no sequences of unequal length were seen."""
        return all_padding([one.padding for one in self.observed.values() if one.padding is not None])
