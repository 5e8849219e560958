"""A simulated job: everything that decides how its steps go, as values. Causes are fields; a cure sets one back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from benchmarks.accuracy.simulator.convnet import ConvNet
from benchmarks.accuracy.simulator.machine import Machine
from benchmarks.accuracy.simulator.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Loader:
    """How batches come: ``kind`` is ``memory`` (they are there), ``inline`` (no workers) or ``workers``."""

    kind: str = "memory"
    batch_ns: int = 0
    workers: int = 0
    prefetch: int = 2
    handover_ns: int = 150_000
    epoch_steps: int = 0
    restart_ns: int = 0
    """A new set of workers takes that long, at the start of every epoch of ``epoch_steps``."""
    heavy_every: int = 0
    heavy_ns: int = 0


@dataclass(frozen=True, slots=True)
class Copies:
    """The batch's way to the device."""

    bytes: int = 131_072
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class Host:
    """What the training thread does besides operators."""

    between_stages_ns: int = 5_000
    per_step_ns: int = 60_000
    slow_python_ns: int = 0
    """Pure Python in the training loop, at the start of every step."""
    traced_calls: int = 0
    """Calls of Python at the start of every step that take next to nothing where no profiler follows them."""
    traced_ns: int = 20_000
    """What one of them takes while it is followed."""
    items_per_step: int = 0
    items_every: int = 0
    """A value is read from the device after every so many operators of the forward pass."""
    syncs_at_end: int = 0
    reads_every: int = 0
    """The loss is read after every so many steps, as a loop does that logs now and then."""
    gc_every: int = 0
    gc_ns: int = 0
    gc_apart: bool = False
    """Ranks collect in different steps, each in its own."""
    allocations_per_step: int = 0
    allocation_ns: int = 300_000
    allocation_steps: int | None = None
    """Memory is asked for in the first so many steps alone."""
    frees_too: bool = False
    every: int = 0
    pause: str = ""
    """An episode ``pause`` (checkpoint, logging or evaluation) after every so many steps, lasting ``pause_ns``."""
    pause_ns: int = 0
    contention: float = 1.0
    """How much slower the host is because other processes want its cores."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """Ranks and how they work together: ``none``, ``ddp``, ``fsdp``, ``pipeline`` or ``expert``."""

    kind: str = "none"
    ranks: int = 1
    bucket_bytes: int = 25 * 1024 * 1024
    overlap: bool = True
    prefetch: bool = True
    sync_every: bool = False
    """With accumulated gradients.

    Reduce them after every micro-batch, not after the last alone (``no_sync`` is missing).
    """
    micro_batches: int = 4
    slow_rank: int | None = None
    slow_rank_scale: float = 1.0
    stage_layers: tuple[int, ...] = ()
    clock_offsets_ns: tuple[int, ...] = ()
    expert_load: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """What the profiler saw and did not keep: shares of the recording's length, or of its events at random."""

    device: tuple[float, float] = (0.0, 0.0)
    """No device event that begins in that stretch is in the file."""
    calls: tuple[float, float] = (0.0, 0.0)
    """No runtime call that begins in that stretch is."""
    some_device: float = 0.0
    some_calls: float = 0.0
    graphs: bool = False
    """No kernel of a replayed graph is."""
    rank: int | None = None
    """On that rank alone."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What a server is asked for: its steps in turn, each ``prefill``, ``decode``, ``mixed`` or ``idle``."""

    turns: tuple[str, ...] = ("decode",)
    marks: str = "vllm"
    """How the engine marks its forward pass: as ``vllm`` or ``sglang`` does."""
    sequences: int = 64
    """Sequences that are decoded together."""
    prompt: int = 2048
    """Tokens of a prefill; a mixed step has as many beside the sequences."""
    pause_ns: int = 0
    """How long a server waits for a request in an idle turn."""
    sampling: str = "fused"
    """``fused`` (one kernel and the draw), ``unfused`` (sort, softmax, cumsum, masks) or ``host`` (in Python)."""
    sampling_ns: int = 0
    """Python of sampling on the host."""
    exchange: str = ""
    """``allreduce`` after attention and after the MLP of each layer, in compute's way: tensor parallelism."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job to simulate."""

    model: Transformer | ConvNet = field(default_factory=Transformer)
    machine: Machine = field(default_factory=Machine)
    loader: Loader = field(default_factory=Loader)
    copies: Copies = field(default_factory=Copies)
    host: Host = field(default_factory=Host)
    parallel: Parallel = field(default_factory=Parallel)
    optimizer: str = "fused"
    accumulate: int = 1
    """Forward and backward passes to an optimizer's step."""
    kind: str = "training"
    graphs: bool = False
    double_forward: bool = False
    recompute: bool = False
    throttled: tuple[tuple[int, float], ...] = ()
    """From a step on, compute takes so many times as long."""
    steps: int = 11
    seed: int = 1
    stacks: bool = False
    sync_events: bool = False
    of_rank: tuple[tuple[int, Host | Loader], ...] = ()
    """What single ranks have instead."""
    hidden_graph_launches: bool = False
    """The calls that launch graphs are not in the trace."""
    lost: Lost = field(default_factory=Lost)
    bare: bool = False
    """The profiler records the device and the calls of its runtime alone: no operator, no annotation, no frame."""
    one_file: str = ""
    """All ranks in one trace: ``plain`` (processes as they are) or ``labelled`` (each with its rank in its name)."""
    requests: Requests = field(default_factory=Requests)
    """Of a job whose kind is ``serving``."""

    def on(self, rank: int) -> Job:
        """The job as one rank has it."""
        job = self
        for number, own in self.of_rank:
            if number == rank:
                job = replace(job, host=own) if isinstance(own, Host) else replace(job, loader=own)
        return job

    @property
    def transformer(self) -> Transformer:
        """The model; only transformers have experts or are cut into stages."""
        if not isinstance(self.model, Transformer):
            raise TypeError(f"{self.model} is no transformer")
        return self.model
