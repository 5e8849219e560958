"""A prediction's request; free of torch, since it crosses from one process to another."""

from __future__ import annotations

from typing import Literal

import msgspec

Checkpoint = Literal["none", "selective", "full"]
Strategy = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"]
Kernels = Literal["default", "foreach", "single", "fused"]
Attention = Literal["default", "flash", "efficient", "cudnn", "math"]

CHECKPOINTS: tuple[Checkpoint, ...] = ("none", "selective", "full")
STRATEGIES: tuple[Strategy, ...] = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp2")
KERNELS: tuple[Kernels, ...] = ("default", "foreach", "single", "fused")
ATTENTIONS: tuple[Attention, ...] = ("default", "flash", "efficient", "cudnn", "math")
DTYPES = ("float32", "fp32", "bfloat16", "bf16", "float16", "fp16", "float64")
OPTIMIZERS = (
    "adamw",
    "adam",
    "amsgrad",
    "nadam",
    "adamax",
    "adagrad",
    "rmsprop",
    "rmsprop-centered-momentum",
    "sgd",
    "sgd-momentum",
    "muon",
)


class Fsdp(msgspec.Struct, frozen=True, kw_only=True):
    """How ``fully_shard`` is called.

    ``wrap`` is whether each repeated block is a unit or the model alone; ``reshard`` whether blocks are sharded again
    after the forward pass; ``param`` and ``reduce`` are dtypes of a ``MixedPrecisionPolicy``; ``shard`` is over how
    many of the ranks parameters are sharded, the rest replicate (HSDP).
    """

    wrap: Literal["blocks", "model"] = "blocks"
    reshard: bool = True
    param: str | None = None
    reduce: str | None = None
    shard: int | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A model, how a step of it runs, and the device that it should run on.

    ``device`` is ``cpu``, or the name of an accelerator; ``capability`` is that of the accelerator where the table
    knows it. ``optimizer`` is ``None`` for a forward and backward pass alone, ``backward`` false for inference.
    ``events`` adds the list of allocations, for which every block is run. ``effective_batch`` is the number of
    samples of an optimizer's step, ``limit_bytes`` a limit of tensors' memory below the device's. ``ranks`` are those
    that share a model's step by ``strategy``, each of them a group of ``tensor_parallel`` times ``pipeline_parallel``
    devices; ``batch`` is that of one of ``micro_batches`` (no fewer than stages). ``attention`` is the kernel of
    ``F.scaled_dot_product_attention``, by default the one that torch chooses. ``timed_on`` are further devices for the
    least time. ``recompute`` are modules to recompute, as ``recompute_names`` names them.
    """

    target: str
    batch: int | None = None
    effective_batch: int | None = None
    limit_bytes: int | None = None
    input_shape: tuple[int, ...] | None = None
    dtype: str | None = None
    autocast: str | None = None
    optimizer: str | None = "adamw"
    kernels: Kernels = "default"
    attention: Attention = "default"
    backward: bool = True
    checkpoint: Checkpoint = "none"
    recompute: tuple[str, ...] = ()
    strategy: Strategy = "none"
    ranks: int = 1
    fsdp: Fsdp = Fsdp()
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    pipeline_parallel: int = 1
    micro_batches: int | None = None
    expert_parallel: int = 1
    device: str = "cpu"
    capability: tuple[int, int] | None = None
    extrapolate: bool = True
    events: bool = False
    timed_on: tuple[str, ...] = ()

    @property
    def on_cpu(self) -> bool:
        """Whether the step runs on a CPU."""
        return self.device == "cpu"

    @property
    def devices(self) -> int:
        """How many devices the job has."""
        return self.ranks * self.tensor_parallel * self.pipeline_parallel

    @property
    def in_a_step(self) -> int:
        """The micro-batches of a step in a pipeline."""
        return self.micro_batches or self.pipeline_parallel

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients of earlier batches are kept while a batch runs."""
        return self.accumulated > 1 or (self.pipeline_parallel > 1 and self.micro_batches != 1)

    @property
    def accumulated(self) -> int:
        """How many batches an optimizer's step sees; gradients of the first ones are kept while the next ones run."""
        if self.effective_batch is None or self.batch is None:
            return 1
        return max(-(-self.effective_batch // (self.batch * self.ranks)), 1)
