"""Work belongs to the module and phase that did it: checkpointing, reuse, aliases, gradients of gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from whystall import FlopCounter, model_profile
from whystall.model.results import ModelProfile

pytestmark = pytest.mark.usefixtures("way")


class Block(nn.Module):
    """Two linear layers, 64 -> 256 -> 64: 262,144 FLOPs each forward for a batch of 8."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.a = nn.Linear(64, 256, bias=False)
        self.b = nn.Linear(256, 64, bias=False)
        self.reentrant = reentrant

    def body(self, x: Any) -> Any:
        return self.b(torch.relu(self.a(x)))

    def forward(self, x: Any) -> Any:
        if self.reentrant is None:
            return self.body(x)
        return checkpoint(self.body, x, use_reentrant=self.reentrant)


def blocks(reentrant: bool | None) -> ModelProfile:
    model = nn.Sequential(*[Block(reentrant) for _ in range(3)])
    x = torch.randn(8, 64, requires_grad=True)
    with FlopCounter(model) as counter:
        model(x).sum().backward()
    assert counter.failure is None
    return counter.profile


def every(profile: ModelProfile, path: str) -> int:
    module = profile.module(path)
    return module.forward.model_flops + module.backward.model_flops + module.recompute.model_flops


ONE = 2 * 8 * 64 * 256


@pytest.mark.parametrize(
    ("reentrant", "a", "b", "recomputed"),
    [
        (None, 786_432, 786_432, 0),
        (False, 1_048_576, 786_432, ONE),  # stops once all that was saved is there again
        (True, 1_048_576, 1_048_576, 2 * ONE),
    ],
)
def test_checkpointing(reentrant: bool | None, a: int, b: int, recomputed: int) -> None:
    profile = blocks(reentrant)

    for place in "012":
        assert (every(profile, f"{place}.a"), every(profile, f"{place}.b")) == (a, b)
        assert every(profile, place) == a + b
        assert profile.module(place).forward.model_flops == 2 * ONE
        assert profile.module(place).backward.model_flops == 4 * ONE
        assert profile.module(place).recompute.model_flops == recomputed
    assert profile.recompute.model_flops == 3 * recomputed
    assert profile.executed_flops == 3 * (a + b)
    assert profile.model_flops == 3 * 6 * ONE


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_of_plain_functions(reentrant: bool) -> None:
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(2)]
    x = torch.randn(8, 64, requires_grad=True)

    with FlopCounter() as counter:
        checkpoint(lambda x: (x @ weights[0]).relu() @ weights[1], x, use_reentrant=reentrant).sum().backward()

    one = 2 * 8 * 64 * 64
    profile = counter.profile
    assert profile.forward.model_flops == 2 * one
    assert profile.backward.model_flops == 4 * one
    assert profile.recompute.model_flops == (2 if reentrant else 1) * one


def test_a_module_called_twice_counts_both() -> None:
    layer = nn.Linear(64, 64, bias=False)
    model = nn.Sequential(layer, nn.ReLU(), layer)

    profile = model_profile(model, torch.randn(8, 64, requires_grad=True), repeats=0)

    one = 2 * 8 * 64 * 64
    assert profile.module("0").calls == 2
    assert profile.module("0").forward.model_flops == profile.forward.model_flops == 2 * one
    assert profile.module("0").backward.model_flops == profile.backward.model_flops == 4 * one
    assert profile.parameters == profile.module("0").parameters == 64 * 64


def test_a_shared_module_counts_where_it_is_called() -> None:
    shared = nn.Linear(64, 64, bias=False)
    model = nn.ModuleDict({"left": nn.Sequential(shared), "right": nn.Sequential(shared, nn.Linear(64, 8, bias=False))})
    x = torch.randn(8, 64)

    with FlopCounter(model) as counter:
        model["right"](x)

    assert counter.profile.module("left").forward.model_flops == 0
    assert counter.profile.module("right.0").forward.model_flops == 2 * 8 * 64 * 64
    assert counter.profile.parameters == 64 * 64 + 64 * 8


def test_tied_weights_count_once() -> None:
    embedding, head = nn.Embedding(100, 16), nn.Linear(16, 100, bias=False)
    head.weight = embedding.weight

    assert model_profile(nn.Sequential(embedding, head), torch.arange(8), repeats=0).parameters == 1600


def test_gradients_of_inputs_and_weights_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))

    profile = model_profile(model, torch.randn(8, 64), repeats=0)

    first, second = 2 * 8 * 64 * 32, 2 * 8 * 32 * 16
    assert profile.weight_gradient_flops == first + second
    assert profile.input_gradient_flops == second  # the data asks for no gradient


@pytest.mark.parametrize("groups", [1, 4, 64])
def test_grouped_convolution_backward_is_twice_forward(groups: int) -> None:
    model = nn.Conv2d(64, 64, 3, padding=1, groups=groups)

    profile = model_profile(model, torch.randn(2, 64, 10, 10, requires_grad=True), repeats=0)

    assert profile.forward.model_flops == 2 * 2 * 64 * (64 // groups) * 9 * 100
    assert profile.backward.model_flops == 2 * profile.forward.model_flops
    assert profile.weight_gradient_flops == profile.input_gradient_flops == profile.forward.model_flops


def test_depthwise_conv1d_backward_is_twice_forward() -> None:
    model = nn.Conv1d(512, 512, 4, padding=3, groups=512)

    profile = model_profile(model, torch.randn(2, 512, 128, requires_grad=True), repeats=0)

    assert profile.backward.model_flops == 2 * profile.forward.model_flops == 2 * 2 * 2 * 512 * 4 * 131


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(1024, 1024, bias=False).requires_grad_(False)
        self.down = nn.Linear(1024, 8, bias=False)
        self.up = nn.Linear(8, 1024, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


def test_frozen_parts_get_no_gradient() -> None:
    model = nn.Sequential(*[Lora() for _ in range(4)])

    profile = model_profile(model, torch.randn(32, 1024), repeats=0)

    assert profile.forward.model_flops == 272_629_760
    assert profile.backward.model_flops == 209_190_912
    assert profile.module("0").backward.model_flops == 3 * 2 * 32 * 1024 * 8  # the data asks for no gradient
    assert profile.module("3.base").weight_gradient_flops == 0
    assert profile.trainable_parameters == 4 * 2 * 8 * 1024


def test_gradient_penalty_reaches_the_modules() -> None:
    model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.Tanh(), nn.Linear(32, 1, bias=False))
    x = torch.randn(8, 64, requires_grad=True)

    with FlopCounter(model) as counter:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.norm(dim=1).sub(1).square().sum().backward()

    first, second = 2 * 8 * 64 * 32, 2 * 8 * 32
    profile = counter.profile
    assert counter.failure is None
    assert profile.forward.model_flops == first + second
    # the slope is one product a layer; its gradient two for each of these, and two through the forward pass
    assert profile.module("0").backward.model_flops + profile.module("2").backward.model_flops == (
        profile.backward.model_flops
    )
    assert profile.module("0").backward.model_flops == first * (1 + 2 + 2)


def test_the_optimizer_is_a_phase() -> None:
    model = nn.Linear(256, 384, bias=False)  # 98,304 parameters
    optimizer = torch.optim.AdamW(model.parameters())
    before = model.weight.detach().clone()

    profile = model_profile(model, torch.randn(2, 256), optimizer=optimizer, repeats=0)

    assert profile.optimizer.all_flops >= 10 * 98_304
    assert profile.optimizer.bytes >= 7 * 4 * 98_304
    assert profile.optimizer.model_flops == 0
    assert torch.equal(model.weight, before)
    assert optimizer.state_dict()["state"] == {}


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=str)
def test_fused_and_foreach_steps_count_alike(options: dict[str, bool]) -> None:
    model = nn.Linear(256, 384, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    profile = model_profile(model, torch.randn(2, 256), optimizer=optimizer, repeats=0)

    assert abs(profile.optimizer.elementwise_ops - 14 * 98_304) <= 64


def test_functional_call_and_vmap() -> None:
    model = nn.Linear(64, 32, bias=False)
    weights = {name: one.detach() for name, one in model.named_parameters()}
    data = torch.randn(8, 1, 64)

    def loss(weights: dict[str, Any], sample: Any) -> Any:
        return functional_call(model, weights, (sample,)).sum()

    with FlopCounter(model) as counter:
        functional_call(model, weights, (data,))
        vmap(grad(loss), in_dims=(None, 0))(weights, data)

    assert counter.failure is None
    assert counter.profile.forward.model_flops + counter.profile.backward.model_flops == 3 * 2 * 8 * 64 * 32


def test_autocast_counts_the_same() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16))
    data = torch.randn(8, 64)

    with FlopCounter(model) as counter, torch.autocast("cpu", dtype=torch.bfloat16):
        model(data).sum().backward()

    one, two = 2 * 8 * 64 * 32, 2 * 8 * 32 * 16
    assert counter.profile.forward.model_flops == one + two
    assert counter.profile.weight_gradient_flops == one + two
    assert counter.profile.input_gradient_flops == two


def test_without_a_model_the_outermost_modules_are_roots() -> None:
    layer, other = nn.Sequential(nn.Linear(64, 32, bias=False)), nn.Linear(32, 16, bias=False)

    with FlopCounter() as counter:
        other(layer(torch.randn(8, 64))) @ torch.randn(16, 4)

    profile = counter.profile
    assert [module.path for module in profile.modules] == ["Sequential", "Sequential.0", "Linear"]
    assert profile.module("Sequential.0").forward.model_flops == 2 * 8 * 64 * 32
    assert profile.forward.model_flops == 2 * 8 * (64 * 32 + 32 * 16 + 16 * 4)
    assert profile.parameters == 64 * 32 + 32 * 16


def test_lstm_backward() -> None:
    model = nn.LSTM(16, 32, 2)

    profile = model_profile(model, torch.randn(10, 4, 16, requires_grad=True), repeats=0)

    assert profile.forward.model_flops == 2 * 40 * 128 * (16 + 32 + 32 + 32)
    assert profile.backward.model_flops == 2 * profile.forward.model_flops
    assert profile.uncovered == ()


def test_flexible_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    query, key = torch.randn(2, 4, 32, 16), torch.randn(2, 4, 32, 16)

    with FlopCounter() as counter, torch.no_grad():
        flex_attention(query, key, key)

    assert counter.failure is None
    assert counter.profile.forward.model_flops == 4 * 8 * 32 * 32 * 16
    assert counter.profile.uncovered == ()
