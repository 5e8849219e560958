"""Steps whose memory is known from a paper, from a table of measurements, or by arithmetic."""

from __future__ import annotations

import pytest

from whystall.model.prediction.conventions import gpt_activation_bytes
from whystall.model.prediction.predict import predict
from whystall.model.prediction.results import Prediction
from whystall.model.prediction.simulator import Simulator

H100 = "NVIDIA H100 80GB HBM3"
GIB = 2**30


def test_the_block_of_the_paper_keeps_what_its_formula_says(simulator: Simulator, models: str) -> None:
    found = predict(f"{models}:paper_block", simulator=simulator, dtype="bf16", device=H100, optimizer=None)
    held = found.phase("forward").held

    kept = held["activations"] + held["inputs"]  # the block's input is kept for its first normalisation

    assert kept == pytest.approx(gpt_activation_bytes(sequence=1024, batch=2, hidden=2048, heads=16), rel=0.001)


STATE_BYTES = {  # bytes a parameter in fp32 and bf16
    "sgd": (0, 0),
    "sgd-momentum": (4, 2),
    "adam": (8, 4),
    "adamw": (8, 4),
    "nadam": (8, 4),
    "adamax": (8, 4),
    "amsgrad": (12, 6),
    "adagrad": (4, 2),
    "rmsprop": (4, 2),
    "rmsprop-centered-momentum": (12, 6),
    "muon": (4, 2),
}


@pytest.mark.parametrize("optimizer", STATE_BYTES)
def test_the_state_of_optimizers(simulator: Simulator, models: str, optimizer: str) -> None:
    for dtype, expected in zip((None, "bf16"), STATE_BYTES[optimizer], strict=True):
        found = predict(f"{models}:square", simulator=simulator, dtype=dtype, optimizer=optimizer)
        state = found.phase("optimizer").held.get("optimizer state", 0)

        assert expected * found.parameters <= state <= expected * found.parameters + 64  # and a few scalars


@pytest.fixture(scope="module")
def llama(simulator: Simulator, models: str) -> Prediction:
    return predict(f"{models}:llama_7b", simulator=simulator, dtype="bf16", device=H100)


def test_a_llama_of_7b(llama: Prediction) -> None:
    assert llama.parameters == 6_738_415_616
    assert llama.peak_bytes == pytest.approx(62.8 * GIB, rel=0.01)
    assert llama.peak_phase == "optimizer"
    assert llama.phase("optimizer").held["temporaries"] == 2 * llama.parameters  # foreach: one copy of the gradients
    assert (llama.basis.blocks, llama.basis.blocks_path) == (32, "layers")
    assert llama.fit is not None
    assert llama.fit.fits


def test_flops_of_a_llama_are_six_a_parameter_and_attention(llama: Prediction) -> None:
    # 2 FLOPs a weight and token forward (embeddings are looked up), twice that backward; two products of attention
    # of 2 s^2 h each a layer forward, and five backward, where flash attention computes the scores again.
    weights = llama.parameters - 32000 * 4096
    attention = 2 * 4096 * 4096 * 4096 * 32
    work = {one.phase: one.flops for one in llama.work}

    assert work["forward"] == pytest.approx(2 * weights * 4096 + 2 * attention, rel=0.001)
    assert work["backward"] == pytest.approx(4 * weights * 4096 + 5 * attention, rel=0.001)


def test_few_blocks_tell_of_all(simulator: Simulator, models: str) -> None:
    few = predict(f"{models}:deep", simulator=simulator)
    every = predict(f"{models}:deep", simulator=simulator, extrapolate=False)

    assert few.basis.depths == (2, 3, 4)
    assert every.basis.depths == ()
    assert (few.peak_bytes, few.phases, few.work) == (every.peak_bytes, every.phases, every.work)
