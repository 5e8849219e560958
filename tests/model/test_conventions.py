"""The conventions of others, on the model that everybody quotes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.model.models import LLAMA, flops_llama

from whystall.model.conventions import LLAMA_3_8B, causal, decoder_of, dense, six_n, torchtitan


def test_llama_3_8b_at_8k() -> None:
    assert LLAMA_3_8B.parameters == 8_030_261_248
    assert round(torchtitan(LLAMA_3_8B) / 1e9, 2) == 57.91
    assert round(causal(LLAMA_3_8B) / 1e9, 2) == 51.47
    assert round(six_n(LLAMA_3_8B) / 1e9, 2) == 48.18


@pytest.mark.parametrize(("sequence", "titan", "megatron"), [(2048, 48.25, 46.64), (32768, 96.57, 70.80)])
def test_other_lengths(sequence: int, titan: float, megatron: float) -> None:
    sizes = decoder_of(config(), sequence, LLAMA_3_8B.parameters)

    assert sizes is not None
    assert round(torchtitan(sizes) / 1e9, 2) == titan
    assert round(causal(sizes) / 1e9, 2) == megatron


def test_the_closed_form_agrees_with_a_count() -> None:
    transformers = pytest.importorskip("transformers", reason="the configuration comes from transformers")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False))
    sizes = decoder_of(model.config, 256, sum(one.numel() for one in model.parameters()))
    linear, core, backward = flops_llama()

    assert sizes is not None
    assert dense(sizes) * 2 * 256 == linear + core + backward


@pytest.mark.parametrize("changes", [{"hidden_act": "gelu"}, {"num_local_experts": 8}, {"intermediate_size": None}])
def test_other_models_have_no_closed_form(changes: dict[str, Any]) -> None:
    assert decoder_of(config(**changes), 128, LLAMA_3_8B.parameters) is None


def test_a_model_with_other_layers_has_no_closed_form() -> None:
    assert decoder_of(config(), 128, LLAMA_3_8B.parameters * 6) is None


def test_small_weights_beside_the_closed_form_are_counted() -> None:
    norms = 2 * 32 * 128  # of queries and keys, in each layer
    sizes = decoder_of(config(), 128, LLAMA_3_8B.parameters + norms)

    assert sizes is not None
    assert six_n(sizes) == 6 * (LLAMA_3_8B.parameters + norms)


def config(**changes: Any) -> SimpleNamespace:
    values = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "hidden_act": "silu",
    }
    return SimpleNamespace(**{**values, **changes})
