"""Counting changes nothing of the user's: functions, flags, state, results, exceptions, threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.nn.modules import module as module_hooks

from whystall import FlopCounter, model_profile

pytestmark = pytest.mark.usefixtures("way")


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False)

    def forward(self, x: Any) -> Any:
        self.inner(x)
        raise ValueError("the user's own")


def everything() -> dict[str, int]:
    """The identity of all that a profiler could have patched."""
    places = {"torch": torch, "F": F, "Tensor": torch.Tensor, "Module": nn.Module, "ops": torch.ops.aten}
    found = {
        f"{place}.{name}": id(vars(owner)[name])
        for place, owner in places.items()
        for name in sorted(vars(owner))
        if callable(vars(owner)[name]) or isinstance(vars(owner)[name], staticmethod)
    }
    hooks = vars(module_hooks)
    return found | {
        name: len(hooks[name]) for name in hooks if name.startswith("_global") and isinstance(hooks[name], dict)
    }


def test_an_exception_leaves_everything_as_it_was() -> None:
    model = Failing()
    model.eval()
    before = everything()

    for _ in range(5):
        counter = FlopCounter(model)
        with pytest.raises(ValueError, match="the user's own"), counter:
            model(torch.zeros(4, 8))
        assert counter.profile.forward.model_flops == 2 * 4 * 8 * 8
        with pytest.raises(ValueError, match="the user's own"):
            model_profile(model, torch.zeros(4, 8))

    after = everything()
    assert {name: after[name] for name in before} == before
    assert not model.training
    assert not model._forward_hooks
    assert model.inner.weight.grad is None


def test_a_caught_exception_ends_its_modules() -> None:
    model = nn.ModuleList([Failing(), nn.Linear(8, 8, bias=False)])

    with FlopCounter(model) as counter:
        with pytest.raises(ValueError, match="own"):
            model[0](torch.zeros(4, 8))
        model[1](torch.zeros(4, 8))

    assert counter.profile.module("1").forward.model_flops == counter.profile.module("0").forward.model_flops == 512


def test_repeats_give_the_same_counts() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(), nn.Linear(32, 16)).train()
    data = torch.randn(8, 64)

    profiles = [model_profile(model, data, repeats=0) for _ in range(5)]

    assert all(profile == profiles[0] for profile in profiles)


def test_the_model_is_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 36, 4))
    data = torch.randn(2, 3, 8, 8)
    model(data).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    state = {name: one.clone() for name, one in model.state_dict().items()}
    gradients = [one.grad.clone() for one in model.parameters()]
    momenta = [one["momentum_buffer"].clone() for one in optimizer.state_dict()["state"].values()]
    random = torch.get_rng_state()

    model_profile(model, data, optimizer=optimizer, repeats=1)

    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert all(torch.equal(one.grad, gradients[place]) for place, one in enumerate(model.parameters()))
    after = [one["momentum_buffer"] for one in optimizer.state_dict()["state"].values()]
    assert all(torch.equal(one, two) for one, two in zip(momenta, after, strict=True))
    assert torch.equal(torch.get_rng_state(), random)


def test_results_are_the_same_bits() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    data = torch.randn(2, 16, 64)
    expected = model(data)

    with FlopCounter(model):
        found = model(data)

    assert torch.equal(found, expected)


def test_gradients_with_respect_to_inputs_work() -> None:
    model = nn.Linear(64, 32)
    x = torch.randn(8, 64, requires_grad=True)

    with FlopCounter(model) as counter:
        (slope,) = torch.autograd.grad(model(x).sum(), x)

    assert slope.shape == x.shape
    assert counter.profile.backward.model_flops == counter.profile.input_gradient_flops == 2 * 8 * 64 * 32


def test_other_threads_are_not_counted() -> None:
    model = nn.Linear(64, 32, bias=False)
    data = torch.randn(8, 64)
    counts: list[int] = []

    def work(rows: int) -> None:
        with FlopCounter(model) as counter:
            for _ in range(20):
                model(data[:rows]).sum().backward()
        counts.append(counter.profile.forward.model_flops // rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 4, 8)]
    with FlopCounter(model) as counter:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert counts == [20 * 2 * 64 * 32] * 4
    assert counter.profile.forward.model_flops == 0


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_compiled_models(warm: bool) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain = nn.Sequential(nn.Linear(64, 32, bias=False), nn.ReLU(), nn.Linear(32, 16, bias=False))
    model = torch.compile(plain, backend="aot_eager")
    data = torch.randn(8, 64)
    if warm:
        model(data)

    for _ in range(2):
        with FlopCounter(model) as counter:
            model(data).sum().backward()
        assert counter.profile.forward.model_flops == 40_960
        assert counter.profile.backward.model_flops == 40_960 + 2 * 8 * 32 * 16

    model(data)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_meta_models() -> None:
    with torch.device("meta"):
        model = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        data = torch.empty(2, 16, 64)

    profile = model_profile(model, data)

    assert profile.forward.model_flops == 2 * 32 * 64 * 64 * 4 + 4 * 2 * 16 * 16 * 64 + 2 * 2 * 32 * 64 * 256
    assert profile.forward.time_ns is None
    assert profile.untimed_because == "the model has no data (meta or fake tensors)"


def test_fake_models() -> None:
    with FakeTensorMode():
        model = nn.Linear(1 << 20, 1 << 20, bias=False)  # four terabytes
        profile = model_profile(model, torch.empty(8, 1 << 20))

    assert profile.forward.model_flops == 2 * 8 << 40
    assert profile.parameters == 1 << 40


def test_counters_nest() -> None:
    model = nn.Linear(64, 32, bias=False)
    data = torch.randn(8, 64)

    with FlopCounter(model) as outer:
        model(data)
        with FlopCounter(model) as inner:
            model(data)

    assert inner.profile.forward.model_flops == 2 * 8 * 64 * 32
    assert outer.profile.forward.model_flops == 2 * 2 * 8 * 64 * 32


def test_a_counter_goes_on_when_it_is_entered_again() -> None:
    model = nn.Linear(64, 32, bias=False)
    counter = FlopCounter(model)

    for _ in range(3):
        with counter:
            model(torch.randn(8, 64))

    assert counter.profile.module("").calls == 3
    assert counter.profile.forward.model_flops == 3 * 2 * 8 * 64 * 32
