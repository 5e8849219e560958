"""What options change in a step, by arithmetic or by an order that must hold."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.errors import UsageError
from whystall.hardware import find
from whystall.model.prediction.fitting import capacity_bytes
from whystall.model.prediction.predict import predict
from whystall.model.prediction.simulator import Simulator

H100 = "NVIDIA H100 80GB HBM3"
GIB = 2**30


def test_checkpointing_keeps_less_and_computes_more(simulator: Simulator, models: str) -> None:
    none, selective, full = (
        predict(f"{models}:deep", simulator=simulator, checkpoint=mode, device=H100, dtype="bf16")
        for mode in ("none", "selective", "full")
    )
    kept = [one.phase("forward").held["activations"] for one in (none, selective, full)]
    inputs_of_blocks = 9 * 2 * 32 * 64 * 2

    assert kept[0] > kept[1] > kept[2] >= inputs_of_blocks
    assert none.flops == selective.flops < full.flops  # products and attention are kept
    again = full.flops - none.flops
    # Products of weights and both of attention, but for the last one (`down`): torch stops computing again where all
    # that the backward pass asks for is there, and what that product gives nobody keeps.
    blocks = 9 * (2 * 64 * 64 * (12 - 4) * 64 + 4 * 32 * 32 * 64 * 2)
    assert again == pytest.approx(blocks, rel=0.01)


def test_the_kernel_of_attention_decides_what_is_kept(simulator: Simulator, models: str) -> None:
    """Two blocks with 96 heads and 2,048 tokens: scores in fp32 are kept by the one that takes attention apart."""
    kept = {}
    for one in ("default", "flash", "cudnn", "efficient", "math"):
        few, more = (
            predict(f"{models}:{name}", simulator=simulator, dtype="bf16", device=H100, optimizer=None, attention=one)
            for name in ("flash_6", "flash_8")
        )
        kept[one] = more.phase("forward").held["activations"] - few.phase("forward").held["activations"]
    assert kept["default"] == kept["flash"]
    assert kept["cudnn"] == pytest.approx(kept["flash"], rel=0.01)
    assert kept["efficient"] == pytest.approx(kept["flash"], rel=0.01)
    scores = 2 * 96 * 2048 * 2048 * 4
    assert scores <= kept["math"] - kept["flash"] <= 1.25 * scores


@pytest.mark.parametrize(
    ("device", "dtype", "attention", "said"),
    [
        (H100, None, "flash", "flash attention does not take"),  # fp32
        ("Tesla T4", "fp16", "flash", "flash attention does not take"),
        ("Tesla T4", "fp16", "cudnn", "cudnn attention does not take"),
        ("cpu", None, "efficient", "no kernel of a CPU"),
        (H100, "bf16", "fastest", "no attention 'fastest'"),
    ],
)
def test_attention_that_torch_would_refuse(
    simulator: Simulator, models: str, device: str, dtype: str | None, attention: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        predict(f"{models}:flash_6", simulator=simulator, dtype=dtype, device=device, attention=attention)


def test_attention_on_a_cpu_is_one_kernel_or_taken_apart(simulator: Simulator, models: str) -> None:
    default, flash, apart = (
        predict(f"{models}:flash_6", simulator=simulator, optimizer=None, attention=kernel)
        for kernel in ("default", "flash", "math")
    )
    held = [one.phase("forward").held["activations"] for one in (default, flash, apart)]
    assert held[0] == held[1]
    assert held[2] - held[1] >= 4 * 96 * 2048 * 2048 * 4  # of the six blocks the last is not done at the peak


def test_what_is_reserved_is_whole_segments_and_no_less_than_is_held(simulator: Simulator, models: str) -> None:
    found = predict(f"{models}:deep", simulator=simulator, device=H100, reserved=True)
    assert found.reserved_bytes is not None
    assert found.reserved_bytes >= found.peak_bytes
    assert found.reserved_bytes % 2**21 == 0
    assert predict(f"{models}:deep", simulator=simulator, device=H100).reserved_bytes is None


def test_the_allocators_settings_change_what_is_reserved(simulator: Simulator, models: str) -> None:
    options: dict[str, Any] = {"simulator": simulator, "device": H100, "reserved": True, "batch": 512}
    usual = predict(f"{models}:deep", **options)
    rounded = predict(f"{models}:deep", allocator="large_segment_size_mb:40", **options)
    assert rounded.allocator == "large_segment_size_mb:40"
    assert usual.allocator is None
    assert (rounded.reserved_bytes or 0) > (usual.reserved_bytes or 0)
    with pytest.raises(UsageError, match="add --reserved"):
        predict(f"{models}:deep", simulator=simulator, device=H100, allocator="expandable_segments:True")
    with pytest.raises(UsageError, match="cannot read the allocator's settings"):
        predict(f"{models}:deep", allocator="expandable", **options)


@pytest.mark.parametrize("where", [{}, {"device": H100, "ranks": 2, "strategy": "ddp"}])
def test_what_is_reserved_is_told_of_one_rank_on_an_accelerator(
    simulator: Simulator, models: str, where: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"single accelerator rank"):
        predict(f"{models}:deep", simulator=simulator, reserved=True, **where)


def test_kernels_of_an_optimizer(simulator: Simulator, models: str) -> None:
    each = {
        kernels: predict(f"{models}:square", simulator=simulator, device=H100, kernels=kernels)
        for kernels in ("foreach", "single", "fused")
    }
    temporaries = {name: one.phase("optimizer").held.get("temporaries", 0) for name, one in each.items()}

    assert temporaries["foreach"] == 512 * 512 * 4
    assert temporaries["fused"] < 4096


def test_ranks_share_what_their_strategy_divides(simulator: Simulator, models: str) -> None:
    alone = predict(f"{models}:deep", simulator=simulator)
    ddp = predict(f"{models}:deep", simulator=simulator, ranks=4, strategy="ddp")
    zero = predict(f"{models}:deep", simulator=simulator, ranks=4, strategy="zero1")
    fsdp = predict(f"{models}:deep", simulator=simulator, ranks=4, strategy="fsdp2")
    state = alone.phase("backward").held["optimizer state"]

    assert ddp.peak_bytes - alone.peak_bytes == 4 * alone.parameters  # buckets as large as the gradients
    assert zero.phase("backward").held["optimizer state"] == pytest.approx(state / 4, rel=0.001)
    assert fsdp.phase("backward").held["parameters"] == pytest.approx(alone.parameters, rel=0.01)  # 4 bytes over 4


def test_autocast_keeps_weights_and_halves_what_products_keep(simulator: Simulator, models: str) -> None:
    whole = predict(f"{models}:deep", simulator=simulator, device=H100)
    cast = predict(f"{models}:deep", simulator=simulator, device=H100, autocast="bf16")

    assert cast.phase("forward").held["parameters"] == whole.phase("forward").held["parameters"]
    assert cast.phase("forward").held["activations"] < whole.phase("forward").held["activations"]


def test_a_misfit_is_told_with_what_would_help(simulator: Simulator, models: str) -> None:
    fits = predict(f"{models}:deep", simulator=simulator, device=H100)
    large = predict(f"{models}:llama_7b", simulator=simulator, device="NVIDIA A100-SXM4-40GB", dtype="bf16")

    assert fits.remedies == ()
    assert large.fit is not None
    assert not large.fit.fits
    outside = sum(one.n_bytes for one in large.fit.outside)
    assert large.fit.spare_bytes == large.fit.capacity_bytes - outside - large.peak_bytes
    assert [one.fits for one in large.remedies] == sorted((one.fits for one in large.remedies), reverse=True)
    assert all(one.saved_bytes == large.peak_bytes - one.peak_bytes > 0 for one in large.remedies)
    assert {"--kernels fused", "--kernels fused --checkpoint full"} <= {one.options for one in large.remedies}


@pytest.mark.parametrize(
    ("name", "shown_gib"),  # what drivers show: nvidia-smi's MiB over 1024
    [(H100, 79.6), ("NVIDIA A100-SXM4-40GB", 40.0), ("NVIDIA A100-SXM4-80GB", 80.0), ("Tesla V100-SXM2-16GB", 16.0)],
)
def test_capacity_is_within_two_percent_of_what_drivers_show(name: str, shown_gib: float) -> None:
    row = find(name)

    assert row is not None
    assert capacity_bytes(row, name) == pytest.approx(shown_gib * GIB, rel=0.02)
