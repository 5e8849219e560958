"""The native part counts what Python described before, and nothing that Python would count otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel

from whystall import FlopCounter
from whystall.errors import WhystallError
from whystall.model import native as part
from whystall.model.counter import _Mode
from whystall.model.results import ModelProfile

pytestmark = pytest.mark.usefixtures("native")


@contextmanager
def python_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part, "load", lambda: None)
        yield


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that Python is handed."""
    names: list[str] = []
    handler = _Mode.__torch_dispatch__

    def listening(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names.append(str(func))
        return handler(self, func, types, args, kwargs)

    monkeypatch.setattr(_Mode, "__torch_dispatch__", listening)
    return names


def both(job: Callable[[], object], times: int = 3) -> tuple[ModelProfile, ModelProfile]:
    """What a job counts natively and by Python alone, run several times each."""
    profiles = []
    for way in (None, python_alone):
        counter = FlopCounter()
        for _ in range(times):
            with counter if way is None else way(), counter if way is not None else _nothing():
                job()
        assert counter.failure is None
        profiles.append(counter.profile)
    return profiles[0], profiles[1]


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_repeated_calls_do_not_reach_python(handed: list[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    data = torch.zeros(2, 8)

    with FlopCounter(model) as counter:
        model(data)
        first = len(handed)
        model(data)

    assert first
    assert set(handed[first:]) <= {"aten.detach.default"}  # autograd's own, which comes another way
    assert counter.profile.module("0").calls == 2
    assert counter.profile.forward.model_flops == 2 * 2 * 2 * (8 * 16 + 16 * 4)


@pytest.mark.parametrize("architecture", ["bert", "mixtral", "mamba", "gpt_neox"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["plain", "checkpointed"])
def test_training_counts_alike(architecture: str, checkpoints: bool) -> None:
    config = AutoConfig.for_model(architecture)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    for name, size in {**sizes, "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0}.items():
        if hasattr(config, name):
            setattr(config, name, size)
    config.use_cache = False
    data = torch.randint(1, 64, (2, 8))

    def job() -> ModelProfile:
        torch.manual_seed(0)
        model = AutoModel.from_config(config).train()
        if checkpoints:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters())
        counter = FlopCounter(model)
        for seed in range(3):
            torch.manual_seed(seed)
            with counter:
                model(data)[0].sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.inference_mode():
                    model(data)
        assert counter.failure is None
        return counter.profile

    with python_alone():
        expected = job()

    assert job() == expected
    assert bool(expected.recompute.model_flops) == checkpoints


def test_what_costs_otherwise_is_another_call() -> None:
    x, wide = torch.randn(8, 8), torch.randn(8, 16)

    def job() -> None:
        for values in (x, x.T, x.double(), wide[:, :8], wide[:, ::2], x.to(torch.bfloat16)):
            values @ values
            values + values
            values.contiguous()
            torch.cat([values, values])
            head = values.expand(1, 1, 8, 8)
            F.scaled_dot_product_attention(head, head, head)
            F.scaled_dot_product_attention(head, head, head, is_causal=True)
        for power in (2, 3.0, 0.5):
            x**power
        for dims in ([0], [1], [0, 1]):
            x.sum(dims)
        torch.bucketize(x, x[0].sort().values, right=True)
        F.gelu(x, approximate="tanh")
        F.gelu(x)

    native, python = both(job)

    assert native == python


def test_gradients_of_gradients_count_alike() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def job() -> None:
        model.zero_grad()
        x = torch.ones(4, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        checkpoint(model, x, use_reentrant=True).sum().backward()

    native, python = both(job)

    assert native == python
    assert native.recompute.model_flops


def test_a_failing_call_is_not_counted_and_leaves_the_mode_in_place() -> None:
    table = nn.Embedding(4, 8)
    weight = torch.zeros(8, 8)

    def job() -> None:
        table(torch.tensor([0, 3]))
        with pytest.raises(IndexError):
            table(torch.tensor([0, 9]))
        weight @ weight

    native, python = both(job)

    assert native == python
    assert native.forward.model_flops == 3 * 2 * 8**3


def test_modes_of_others_still_see_every_call() -> None:
    class Listening(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.zeros(4, 4)
    with Listening() as outer, FlopCounter() as counter:
        for _ in range(3):
            x @ x
        with Listening() as inner:
            for _ in range(3):
                x @ x

    assert outer.names == ["aten.mm.default"] * 6
    assert inner.names == ["aten.mm.default"] * 3
    assert counter.profile.forward.model_flops == 6 * 2 * 4**3


def test_counters_inside_each_other_count_alike() -> None:
    model = nn.Linear(4, 4, bias=False)
    data = torch.zeros(4, 4)
    profiles = []
    for way in (_nothing, python_alone):
        outer, inner = FlopCounter(model), FlopCounter(model)
        model.zero_grad()
        with way():
            for _ in range(3):
                with outer:
                    model(data).sum().backward()
                    with inner:
                        model(data).sum().backward()
                    model(data).sum().backward()
        profiles.append((outer.profile, inner.profile))

    assert profiles[0] == profiles[1]
    assert profiles[0][0].forward.model_flops == 3 * profiles[0][1].forward.model_flops


def test_results_can_be_read_and_forgotten_meanwhile() -> None:
    model = nn.Linear(8, 8, bias=False)
    data = torch.zeros(8, 8)
    each = 2 * 8**3

    with FlopCounter(model) as counter:
        for count in range(1, 5):
            model(data)
            assert counter.profile.forward.model_flops == count * each
        counter.reset()
        for count in range(1, 5):
            model(data)
            assert counter.profile.forward.model_flops == count * each


def test_reading_in_another_thread_loses_nothing() -> None:
    model = nn.Linear(8, 8, bias=False)
    data = torch.zeros(8, 8)
    counter = FlopCounter(model)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            counter.profile  # noqa: B018 - reading is the point

    reader = threading.Thread(target=read)
    with counter:
        reader.start()
        for _ in range(500):
            model(data)
        done.set()
        reader.join()

    assert counter.profile.forward.model_flops == 500 * 2 * 8**3


def test_an_operator_that_is_defined_anew_is_described_anew() -> None:
    x = torch.zeros(4, 4)

    def define(kernel: Callable[[Any], Any]) -> Any:
        library = torch.library.Library("whystall_native_test", "FRAGMENT")
        library.define("square(Tensor x) -> Tensor")
        library.impl("square", kernel, "CompositeExplicitAutograd")
        return library

    with FlopCounter() as counter:
        for kernel in (torch.clone, torch.neg):
            library = define(kernel)
            for _ in range(2):
                torch.ops.whystall_native_test.square(x)
            library._destroy()

    assert sum(one.calls for one in counter.profile.uncovered) == 4


def test_torch_is_left_as_it_was(native: ModuleType) -> None:
    model = nn.Linear(4, 4)
    assert not native.stands_in()

    with suppress(ValueError), FlopCounter(model), FlopCounter():
        assert native.stands_in()
        raise ValueError("the user's own")

    assert not native.stands_in()


def test_a_counter_that_is_dropped_leaves_no_trace(native: ModuleType, handed: list[str]) -> None:
    x = torch.zeros(4, 4)
    for _ in range(50):  # a later counter may lie where an earlier one lay
        with FlopCounter() as counter:
            x @ x
        assert counter.profile.forward.model_flops == 2 * 4**3
        del counter

    assert len(handed) == 50


def test_it_says_why_it_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "lane.cpp"
    broken.write_text("#error another torch\n")
    monkeypatch.setattr(part, "SOURCE", broken)
    with pytest.raises(WhystallError, match=r"does not compile against torch 2\..*another torch"):
        part.build()

    broken.write_text("int nothing;\n")
    with pytest.raises(WhystallError, match="does not load"):
        part.build()
    assert sorted(tmp_path.iterdir()) == [broken]

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WhystallError, match="no C\\+\\+ compiler was found"):
        part.build()
