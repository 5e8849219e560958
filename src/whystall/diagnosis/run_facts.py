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
    """Those that the ranks of one machine might use together; ``None``: as one of them."""
    ranks_here: int | None = None
    """The ranks of that machine; ``None``: all."""
    bound: bool = False
    """Whether each of them has cores of its own."""
    loaders: tuple[dict[str, int | bool | None], ...] = ()
    profiled_over_unprofiled: float | None = None
    padding: PaddedBatches | None = None
    """For all ranks together; ``None`` where no sequences of unequal length were seen."""
    repeated: dict[int, RepeatedWork] = field(default_factory=dict)
    """Per rank what it was seen to compute again."""
    unread: dict[int, RepeatedWork] = field(default_factory=dict)
    """Per rank what it was seen to compute that nothing read."""
    masked: dict[int, RepeatedWork] = field(default_factory=dict)
    """Per rank what it was seen to compute for rows that a mask threw away."""
    partly: dict[int, RepeatedWork] = field(default_factory=dict)
    """Per rank what it was seen to compute beside the part of it that was read."""
    alike: dict[int, RepeatedWork] = field(default_factory=dict)
    """Per rank what it was seen to compute of rows that were there before within the same call."""
    sparse: dict[int, tuple[SparseMatrix, ...]] = field(default_factory=dict)
    """Per rank the matrices in its products that are nearly all zeros."""
    labels: dict[int, tuple[CountedLabels, ...]] = field(default_factory=dict)
    """Per rank the scores of which not all have a label that counts."""
    tables: dict[int, tuple[MadeTable, ...]] = field(default_factory=dict)
    """Per rank the tables of embeddings that it made, and where."""
    attended: dict[int, tuple[AttendedScores, ...]] = field(default_factory=dict)
    """Per rank the scores of attention of which a mask hides some."""
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
    """Where the job ran; ``None``: it did not say."""
    samples_per_step: int | None = None
    """How many samples a loader handed out for a step of one rank."""
    command: str | None = None
    """The job's command as one types it; ``None``: not known."""
    began_unix_ns: int | None = None
    job: WholeJob | None = None
    """When the job began."""
    remedies: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Per cause the least and the most that its remedies brought here of what was predicted (`whystall verify`)."""
    experiments: tuple[Experiment, ...] = ()
    """Results of further runs with one thing changed (``whystall run --experiments``)."""
