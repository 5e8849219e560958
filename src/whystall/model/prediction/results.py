"""A prediction's frozen results, free of torch, that print and serialise."""

from __future__ import annotations

import msgspec

from whystall.model.prediction.request import Request


class PhasePeak(msgspec.Struct, frozen=True, kw_only=True):
    """The fullest moment of a phase: the memory by kind adds up to ``n_bytes``."""

    phase: str
    n_bytes: int
    held: dict[str, int]


class ModuleBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Activations that a module keeps for the backward pass; a star stands for every repeated block."""

    module: str
    n_bytes: int


class PhaseWork(msgspec.Struct, frozen=True, kw_only=True):
    """Operations and bytes of a phase; ``least_ns`` is its time at the device's peaks, if they are known."""

    phase: str
    flops: int
    n_bytes: int
    least_ns: int | None


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of no tensor of the step: an assumption, with its source."""

    what: str
    n_bytes: int
    source: str


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the step fits a device: ``spare_bytes`` is the rest, below 0 the missing part.

    ``limited`` where ``capacity_bytes`` is a requested limit, for tensors alone. ``fragmented`` where tensors would fit
    and the allocator's segments do not.
    """

    device: str
    capacity_bytes: int
    limited: bool = False
    outside: tuple[Outside, ...]
    spare_bytes: int
    fits: bool
    fragmented: bool = False


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change that needs less memory, predicted like the step itself; ``more_ns`` is added to the least time."""

    text: str
    options: str
    peak_bytes: int
    saved_bytes: int
    more_flops: int
    more_ns: int | None
    fits: bool


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """Modules of one name that are recomputed in the backward pass; a star stands for alike ones.

    ``saved_bytes``, ``more_flops`` and ``more_ns`` are their additions to the rows before, ``peak_bytes`` and
    ``options`` those with these rows too, predicted like the step itself. ``keeps_products``: costly results are kept.
    ``flops_share`` is a share of the requested step's FLOPs. ``kept_bytes`` is the size of the modules' activations in
    it, made by ``operators`` (the largest).
    """

    module: str
    kind: str
    calls: int
    keeps_products: bool
    options: str
    saved_bytes: int
    more_flops: int
    flops_share: float
    more_ns: int | None
    total_saved_bytes: int
    total_more_flops: int
    peak_bytes: int
    fits: bool
    kept_bytes: int
    operators: dict[str, int]


class BatchPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a step with ``batch`` samples, and the rest of the device; ``least_ns`` as that of a phase."""

    batch: int
    peak_bytes: int
    spare_bytes: int
    least_ns: int | None

    @property
    def fits(self) -> bool:
        """Whether the device holds it."""
        return self.spare_bytes >= 0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A step on one device: ``None`` where the table of accelerators does not know its size, or its peaks."""

    device: str
    peak_bytes: int
    fits: bool | None
    least_ns: int | None


class OptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step with one option changed, on several devices."""

    text: str
    options: str
    cells: tuple[Cell, ...]


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """The basis of the numbers: ``blocks`` repeated ones, of which ``depths`` were run, and the error of that."""

    blocks_path: str | None
    blocks: int
    depths: tuple[int, ...]
    depth_error: float | None
    error_share: float | None
    error_source: str


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The peak memory of a training step on one rank, by phase and kind."""

    request: Request
    parameters: int
    trainable_parameters: int
    peak_bytes: int
    peak_phase: str
    phases: tuple[PhasePeak, ...]
    activations: tuple[ModuleBytes, ...]
    work: tuple[PhaseWork, ...]
    basis: Basis
    assumed: tuple[str, ...]
    uncovered: tuple[str, ...]
    fit: Fit | None = None
    unfit_because: str | None = None
    remedies: tuple[Remedy, ...] = ()
    recompute: tuple[Recompute, ...] = ()
    """Modules to recompute, each with its saving and cost; computed together with the remedies."""
    no_recompute_because: str | None = None
    stages: tuple[int, ...] = ()
    """The peak of a rank of each stage of a pipeline, in order; other fields describe the largest stage."""
    tensor_parallel_bytes: int = 0
    """Bytes that a rank sends in a step, at least, to those that share its products (tensor parallelism); for one
    batch.
    """
    batches: tuple[BatchPeak, ...] = ()
    """Predictions made to find the largest batch that fits, smallest first; empty unless it was requested."""
    conventions: dict[str, int] = {}
    reserved_bytes: int | None = None
    """The most that torch's caching allocator would reserve for it; ``None``: not requested."""
    allocator: str | None = None
    """The allocator's settings that this was worked out with; ``None``: its defaults."""

    @property
    def flops(self) -> int:
        """All FLOPs of a step, recomputation included."""
        return sum(one.flops for one in self.work)

    def bubble_share(self, times: int = 1) -> float:
        """The share of a step in which a stage of a pipeline waits for others, at least: if all are equally long.

        One forward, one backward in turn (arXiv 2104.04473): for ``p`` stages and ``m`` micro-batches ``p - 1`` parts
        of ``m + p - 1``. 0 without a pipeline. ``times`` multiplies the number of micro-batches.
        """
        stages = self.request.pipeline_parallel
        return (stages - 1) / (times * self.request.in_a_step + stages - 1)

    def phase(self, name: str) -> PhasePeak:
        """The peak of one phase. Raises ``KeyError`` where it did not run."""
        for one in self.phases:
            if one.phase == name:
                return one
        raise KeyError(f"no phase {name!r}; there are {', '.join(one.phase for one in self.phases)}")
