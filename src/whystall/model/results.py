"""The cost of a model: frozen results, free of torch, that print and serialise."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["forward", "backward", "recompute", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "recompute", "optimizer")


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one phase, of a model or of one module with all that it contains.

    ``model_flops`` counts each product of the model once, attention scores dense; ``model_flops_causal`` takes half of
    a causal score matrix. ``executed_flops`` adds recomputation in fused kernels. ``all_flops`` adds elementwise
    operations. ``time_ns`` is ``None`` where nothing was timed; ``time_spread_ns`` is the range over the repeats.
    ``thread_time_ns`` is the time that the running thread spent on a processor: on a CPU, and for the backward pass of
    the whole model only.
    """

    model_flops: int = 0
    model_flops_causal: int = 0
    executed_flops: int = 0
    elementwise_ops: int = 0
    all_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes: int = 0
    time_ns: int | None = None
    time_spread_ns: int | None = None
    thread_time_ns: int | None = None


class ModuleProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One module by its path in the model, with everything that it contains.

    ``calls`` are those of the forward pass, ``recompute_calls`` those of checkpointing. ``input_gradient_flops`` and
    ``weight_gradient_flops`` are the parts of the backward pass's model FLOPs whose kind is known. A module that is
    ``compiled`` as part of another has no numbers of its own: its work is counted with the module around it.
    """

    path: str
    class_name: str
    parent: str | None
    depth: int
    calls: int
    recompute_calls: int
    parameters: int
    trainable_parameters: int
    forward: Amount
    backward: Amount
    recompute: Amount
    optimizer: Amount
    input_gradient_flops: int
    weight_gradient_flops: int
    compiled: bool = False


class OperatorProfile(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operator in one phase."""

    name: str
    phase: Phase
    kind: str
    calls: int
    model_flops: int
    elementwise_ops: int
    bytes: int


class Uncovered(msgspec.Struct, frozen=True, kw_only=True):
    """An operator on floating-point data that has no formula: its work is in no number here.

    ``reason`` is set for other reasons: sparse tensors, or a failure of ours.
    """

    name: str
    calls: int
    modules: tuple[str, ...]
    reason: str | None = None


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a run of a model, in all, by module and by operator.

    ``modules`` come in the order of the tree; the first is the model itself. ``untimed_because`` is the reason why
    there is no time, ``missing`` lists costs that could not be measured.
    """

    parameters: int
    trainable_parameters: int
    forward: Amount
    backward: Amount
    recompute: Amount
    optimizer: Amount
    input_gradient_flops: int
    weight_gradient_flops: int
    modules: tuple[ModuleProfile, ...]
    operators: tuple[OperatorProfile, ...]
    uncovered: tuple[Uncovered, ...]
    time_repeats: int = 0
    untimed_because: str | None = None

    @property
    def model_flops(self) -> int:
        """Model FLOPs of forward and backward together: MFU divides them by time and peak."""
        return self.forward.model_flops + self.backward.model_flops

    @property
    def model_flops_causal(self) -> int:
        """``model_flops`` with half of every causal score matrix."""
        return self.forward.model_flops_causal + self.backward.model_flops_causal

    @property
    def executed_flops(self) -> int:
        """Executed FLOPs of forward, backward and recomputation: HFU divides them by time and peak."""
        return self.forward.executed_flops + self.backward.executed_flops + self.recompute.executed_flops

    @property
    def all_flops(self) -> int:
        """Every operation of every phase, elementwise ones and the optimizer's included."""
        return sum(getattr(self, phase).all_flops for phase in PHASES)

    def module(self, path: str) -> ModuleProfile:
        """The module at ``path``. Raises ``KeyError`` with the paths nearby where there is none."""
        for module in self.modules:
            if module.path == path:
                return module
        nearby = [module.path for module in self.modules if module.path.startswith(path.partition(".")[0])]
        raise KeyError(f"no module {path!r}; there are {', '.join(map(repr, nearby[:5])) or 'none like it'}")
