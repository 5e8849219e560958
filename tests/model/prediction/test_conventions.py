"""Formulas of papers and other tools, at the figures that they print."""

from __future__ import annotations

import pytest

from whystall.model.prediction import conventions
from whystall.model.prediction.predict import predict
from whystall.model.prediction.simulator import Simulator

LLAMA_7B = 6_738_415_616
LARGEST_LAYER = 131_072_000  # the embedding: DeepSpeed's layer is a module with parameters of its own
GIB = 2**30


@pytest.mark.parametrize(("stage", "expected_gib"), [(1, 34.5), (2, 23.5), (3, 12.6)])
def test_the_paper_for_a_model_of_7b_on_8_ranks(stage: int, expected_gib: float) -> None:
    assert round(conventions.zero_paper(LLAMA_7B, 8, stage) / GIB, 1) == expected_gib


def test_the_paper_for_its_own_example() -> None:
    stages = [conventions.zero_paper(7_500_000_000, 64, stage) / 1e9 for stage in range(4)]

    assert [round(one, 1) for one in stages] == [120.0, 31.4, 16.6, 1.9]


def test_deepspeeds_estimators() -> None:
    assert round(conventions.deepspeed_zero2(LLAMA_7B, 8) / GIB, 1) == 26.7
    assert round(conventions.deepspeed_zero3(LLAMA_7B, 8, LARGEST_LAYER) / GIB, 1) == 14.6


def test_deepspeeds_estimators_with_offloading() -> None:
    """As their formulas are quoted: 2P and P*max(4N,16)*1.5; 4L+2P/N, 4L and 18P*1.5."""
    found = conventions.all_of(LLAMA_7B, 8, LARGEST_LAYER)
    told = {name: round(n_bytes / GIB, 2) for name, n_bytes in found.items() if "CPU" in name}
    assert told == {
        "ZeRO 2, optimizer on the CPU (DeepSpeed's estimator)": 12.55,
        "the CPU for that, of one machine (DeepSpeed's estimator)": 301.23,
        "ZeRO 3, optimizer on the CPU (DeepSpeed's estimator)": 2.06,
        "ZeRO 3, all on the CPU (DeepSpeed's estimator)": 0.49,
        "the CPU for all of it, of one machine (DeepSpeed's estimator)": 169.44,
    }
    assert conventions.deepspeed_zero2_offloaded(LLAMA_7B, 1)[1] == LLAMA_7B * 24  # never less than 16 bytes, and half


@pytest.mark.parametrize(
    ("settings", "units"),
    [
        ({}, 23),
        ({"sequence_parallel": True}, 14.25),
        ({"sequence_parallel": True, "recompute": "selective"}, 4.25),
        ({"recompute": "full"}, 2),
    ],
)
def test_activations_of_a_block_under_tensor_parallelism(settings: dict[str, object], units: float) -> None:
    found = conventions.gpt_activation_bytes(
        sequence=2048,
        batch=1,
        hidden=12288,
        heads=96,
        tensor_parallel=8,
        **settings,  # type: ignore[arg-type]
    )

    assert found == units * 2048 * 12288


LLAMA = conventions.TransformerSizes(sequence=4096, batch=1, hidden=4096, inner=11008, layers=32, vocabulary=32000)


def test_megatrons_activations_of_a_llama() -> None:
    """28.75 units of sequence x batch x hidden a block, as the formula gives them; then the ends."""
    unit = 4096 * 4096
    blocks = conventions.megatron_activations(
        conventions.TransformerSizes(**{**_fields(LLAMA), "vocabulary": 0}), tensor_parallel=1, sequence_parallel=False
    )
    assert blocks == 32 * 28.75 * unit + 8 * 4096 + 5 * unit
    whole = conventions.megatron_activations(LLAMA, tensor_parallel=1, sequence_parallel=False)
    assert whole - blocks == 4 * 4096 * 32000
    assert conventions.megatron_activations(LLAMA, tensor_parallel=8, sequence_parallel=True) == whole // 8
    assert conventions.megatron_activations(LLAMA, tensor_parallel=8, sequence_parallel=False) == 32 * 13 * unit


def test_a_prediction_tells_megatrons_activations_of_a_language_model_alone(simulator: Simulator, models: str) -> None:
    told = predict(f"{models}:llama_7b", simulator=simulator, dtype="bf16", conventions=True).conventions
    expected = conventions.megatron_activations(LLAMA, tensor_parallel=1, sequence_parallel=False)
    assert told["activations (Megatron, 16 bits)"] == expected
    other = predict(f"{models}:square", simulator=simulator, conventions=True).conventions
    assert "activations (Megatron, 16 bits)" not in other


def _fields(sizes: conventions.TransformerSizes) -> dict[str, int]:
    return {name: getattr(sizes, name) for name in sizes.__slots__}
