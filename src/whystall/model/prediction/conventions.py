"""Memory as papers and other tools count it: closed formulas, to hold a prediction against.

None of them knows a model's real kernels, and all take Adam in mixed precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MIXED_ADAM_BYTES = 12  # an fp32 copy of the weights and two moments, for each parameter


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """The sizes of a language model in formulas; ``inner`` is the width between the products of a block's MLP."""

    sequence: int
    batch: int
    hidden: int
    inner: int
    layers: int
    vocabulary: int


def zero_paper(parameters: int, ranks: int, stage: int) -> int:
    """Bytes of parameters, gradients and Adam's state on a rank, in mixed precision (arXiv 1910.02054, figure 1).

    >>> zero_paper(7_500_000_000, 64, 0) // 10**9, zero_paper(7_500_000_000, 64, 3) / 10**9
    (120, 1.875)
    """
    weights = 2 * parameters // (ranks if stage >= 3 else 1)
    gradients = 2 * parameters // (ranks if stage >= 2 else 1)
    state = _MIXED_ADAM_BYTES * parameters // (ranks if stage >= 1 else 1)
    return weights + gradients + state


def deepspeed_zero2(parameters: int, ranks: int) -> int:
    """The result of ``estimate_zero2_model_states_mem_needs`` (stage_1_and_2.py): fp32 gradients are counted too."""
    return 2 * parameters + 18 * parameters // ranks


def deepspeed_zero3(parameters: int, ranks: int, largest_layer: int) -> int:
    """The result of ``estimate_zero3_model_states_mem_needs`` (stage3.py): two copies of the largest layer."""
    return 4 * largest_layer + 18 * parameters // ranks


def deepspeed_zero2_offloaded(parameters: int, ranks: int) -> tuple[int, int]:
    """The same with the optimizer on the CPU: bytes of a rank's device, and of the one machine's CPU."""
    return 2 * parameters, parameters * max(4 * ranks, 16) * 3 // 2


def deepspeed_zero3_offloaded(parameters: int, ranks: int, largest_layer: int, *, all_of_it: bool) -> int:
    """Bytes of a rank's device with the optimizer on the CPU, or with the parameters there as well."""
    return 4 * largest_layer + (0 if all_of_it else 2 * parameters // ranks)


def deepspeed_zero3_cpu(parameters: int) -> int:
    """Bytes of the CPU of one machine on which all lies (with ``zero.Init``)."""
    return 18 * parameters * 3 // 2


def megatron(parameters: int, ranks: int, *, distributed_optimizer: bool) -> int:
    """The result of Megatron's ``theoretical_memory_usage``: 18 bytes a parameter, or 6 and 12 shared by the ranks."""
    return 6 * parameters + 12 * parameters // ranks if distributed_optimizer else 18 * parameters


def megatron_activations(sizes: TransformerSizes, *, tensor_parallel: int, sequence_parallel: bool) -> int:
    """The result of Megatron's ``compute_activation_memory`` on one stage, in 16 bits.

    Without sequence parallelism another formula applies. Neither covers a gated MLP, attention that keeps scores, or
    checkpoints.
    """
    unit = sizes.sequence * sizes.batch * sizes.hidden
    if tensor_parallel > 1 and not sequence_parallel:
        return sizes.layers * (10 * unit + 24 * unit // tensor_parallel)
    blocks = sizes.layers * (18 * unit + 4 * unit * sizes.inner // sizes.hidden)
    ends = 8 * sizes.sequence * sizes.batch + unit + 4 * unit + 4 * unit * sizes.vocabulary // sizes.hidden
    return (blocks + ends) // tensor_parallel


def all_of(parameters: int, ranks: int, largest_layer: int) -> Mapping[str, int]:
    """Every convention for parameters, gradients and optimizer, by a name with its tool."""
    on_device, on_cpu = deepspeed_zero2_offloaded(parameters, ranks)
    return {
        "data parallel (ZeRO paper, mixed precision)": zero_paper(parameters, ranks, 0),
        **{f"ZeRO {stage} (ZeRO paper, mixed precision)": zero_paper(parameters, ranks, stage) for stage in (1, 2, 3)},
        "ZeRO 2 (DeepSpeed's estimator)": deepspeed_zero2(parameters, ranks),
        "ZeRO 3 (DeepSpeed's estimator)": deepspeed_zero3(parameters, ranks, largest_layer),
        "ZeRO 2, optimizer on the CPU (DeepSpeed's estimator)": on_device,
        "the CPU for that, of one machine (DeepSpeed's estimator)": on_cpu,
        "ZeRO 3, optimizer on the CPU (DeepSpeed's estimator)": deepspeed_zero3_offloaded(
            parameters, ranks, largest_layer, all_of_it=False
        ),
        "ZeRO 3, all on the CPU (DeepSpeed's estimator)": deepspeed_zero3_offloaded(
            parameters, ranks, largest_layer, all_of_it=True
        ),
        "the CPU for all of it, of one machine (DeepSpeed's estimator)": deepspeed_zero3_cpu(parameters),
        "data parallel (Megatron)": megatron(parameters, ranks, distributed_optimizer=False),
        "distributed optimizer (Megatron)": megatron(parameters, ranks, distributed_optimizer=True),
    }


def gpt_activation_bytes(
    *,
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> int:
    """Bytes that a GPT block with dropout keeps in 16 bits (Korthikanti et al., arXiv 2205.05198, table 2).

    >>> gpt_activation_bytes(sequence=1024, batch=2, hidden=2048, heads=16)
    310378496
    """
    unit = sequence * batch * hidden
    if recompute == "full":
        return 2 * unit
    scores = 0 if recompute == "selective" else 5 * heads * sequence * sequence * batch
    whole = 34 * unit + scores
    if sequence_parallel:
        return whole // tensor_parallel
    return 10 * unit + (24 * unit + scores) // tensor_parallel
