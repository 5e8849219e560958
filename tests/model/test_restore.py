"""A profiled model, its inputs and its optimizer are afterwards as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from whystall import model_profile


class Buffers(nn.Module):
    """Counts its calls in a buffer that it replaces, and has one that several elements share."""

    calls: Any

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("expanded", torch.zeros(1, 4).expand(3, 4))

    def forward(self, x: Any) -> Any:
        self.calls = self.calls + 1
        return self.linear(x) + self.expanded[0]


def test_buffers_and_gradients_of_inputs() -> None:
    model = Buffers()
    x = torch.randn(2, 4, requires_grad=True)
    x.grad = gradient = torch.ones(2, 4)
    calls, expanded = model.calls, model.expanded

    profile = model_profile(model, x, repeats=1)

    assert profile.backward.model_flops == 2 * 2 * 2 * 4 * 4
    assert model.calls is calls
    assert calls == 0
    assert model.expanded is expanded
    assert x.grad is gradient
    assert torch.equal(gradient, torch.ones(2, 4))


def test_models_of_an_inference_mode() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    profile = model_profile(model.eval(), torch.randn(2, 4), backward=False)

    assert profile.forward.model_flops == 2 * 2 * 4 * 4


def test_each_run_gets_the_cache_as_it_was_given() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=64))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.randint(0, 64, (1, 16)), past_key_values=cache)

    profile = model_profile(model, torch.randint(0, 64, (1, 4)), {"past_key_values": cache}, repeats=2)

    assert cache.get_seq_length() == 16
    scores = 2 * 2 * 4 * (16 + 4) * 32  # of a layer: queries by keys, and weights by values
    products = 2 * 4 * (4 * 32 * 32 + 3 * 32 * 64)
    assert profile.forward.model_flops == 2 * (scores + products) + 2 * 4 * 32 * 64
    assert profile.time_repeats == 2


def test_state_of_an_optimizer_keeps_its_tensors_and_types() -> None:
    model = nn.Linear(4, 4).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.randn(2, 4).bfloat16()
    model(data).sum().backward()
    optimizer.step()
    weights = model.weight.detach().clone()
    for state in optimizer.state.values():
        state["master"] = state["momentum_buffer"].float()  # of another type than the parameter
    states = [one for state in optimizer.state.values() for one in state.values()]
    before = [one.clone() for one in states]

    model_profile(model, data, optimizer=optimizer, repeats=1)

    after = [one for state in optimizer.state.values() for one in state.values()]
    assert all(one is two for one, two in zip(states, after, strict=True))
    assert all(one.dtype == two.dtype for one, two in zip(before, after, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert torch.equal(model.weight, weights)


def test_an_optimizer_that_had_no_state_has_none() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    model_profile(model, torch.randn(2, 4), optimizer=optimizer, repeats=1)

    assert not optimizer.state


def test_what_fails_leaves_the_random_numbers_as_they_were() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Linear(4, 4)).train()
    random = torch.get_rng_state()

    with pytest.raises(RuntimeError):
        model_profile(model, torch.ones(2, 5), repeats=0)

    assert torch.equal(torch.get_rng_state(), random)
