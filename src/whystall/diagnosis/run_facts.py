"""The facts about a watched run that rules need."""

from __future__ import annotations

from dataclasses import dataclass, field

from whystall.analysis.run_results import Environment
from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.frameworks import Trainer
from whystall.run_folder.description import (
    AttendedScores,
    CompileLimit,
    CountedLabels,
    MadeAt,
    MadeTable,
    PaddedBatches,
    PythonTool,
    RepeatedWork,
    SparseMatrix,
    WindowPlace,
)


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
    padding: PaddedBatches | None = None
    """For all ranks together; ``None`` where no sequences of unequal length were seen."""
    repeated: dict[int, RepeatedWork] = field(default_factory=dict)
    """Repeated work of each rank."""
    unread: dict[int, RepeatedWork] = field(default_factory=dict)
    """Work of each rank whose results nothing read."""
    masked: dict[int, RepeatedWork] = field(default_factory=dict)
    """Work of each rank on rows that a mask threw away."""
    partly: dict[int, RepeatedWork] = field(default_factory=dict)
    """Work of each rank beside the part of it that was read."""
    alike: dict[int, RepeatedWork] = field(default_factory=dict)
    """Work of each rank on rows equal to earlier ones within the same call."""
    sparse: dict[int, tuple[SparseMatrix, ...]] = field(default_factory=dict)
    """Per rank the matrices in its products that are nearly all zeros."""
    labels: dict[int, tuple[CountedLabels, ...]] = field(default_factory=dict)
    """Scores of each rank some of whose labels are ignored."""
    tables: dict[int, tuple[MadeTable, ...]] = field(default_factory=dict)
    """Per rank the tables of embeddings that it made, and where."""
    attended: dict[int, tuple[AttendedScores, ...]] = field(default_factory=dict)
    """Attention scores of each rank some of which a mask hides."""
    in_windows: dict[int, tuple[WindowPlace, ...]] = field(default_factory=dict)
    """Per rank where its thread was found while steps were recorded."""
    given_up: dict[int, tuple[CompileLimit, ...]] = field(default_factory=dict)
    """Per rank the functions that torch's compiler gave up."""
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
