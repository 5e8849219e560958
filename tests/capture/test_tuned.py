"""Settings put into constructors of torch's, in this process; they are taken out again after each test."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from whystall.capture.config import CaptureConfig, ExperimentSetup, TrialSetup
from whystall.capture.experiments import Injected
from whystall.capture.tuned import Tuned, change_for

DATA = TensorDataset(torch.zeros(8, 2))
KINDS = ("Adam", "AdamW", "SGD", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tuned]:
    for kind in (DataLoader, *(getattr(torch.optim, name) for name in KINDS)):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    wrapped = (torch.optim.Optimizer, torch.nn.Module, torch.autocast, torch.nn.parallel.DistributedDataParallel)
    for kind in wrapped:
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward)

    def install(**settings: int | str | bool) -> Tuned:
        made = Tuned(torch, TrialSetup(settings=settings))
        made.install()
        return made

    return install


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(2))]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


def test_without_settings_everything_is_as_it_was_asked_for(tuned: Callable[..., Tuned]) -> None:
    change = tuned()
    loader: Any = DataLoader(DATA, 4, True, num_workers=1, prefetch_factor=3)
    optimizer = torch.optim.AdamW(parameters(), 0.1, foreach=False)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (4, 1, 3)
    assert (optimizer.defaults["lr"], optimizer.defaults["foreach"], optimizer.defaults["fused"]) == (0.1, False, None)
    assert change.seen is not None
    assert [one["num_workers"] for one in change.seen["loaders"]] == [1]
    assert [one["class"] for one in change.seen["optimizers"]] == ["AdamW"]  # and not Adam, through which it is made
    assert change.seen["optimizers"][0]["file"] == __file__


def test_a_loader_gets_its_settings(tuned: Callable[..., Tuned]) -> None:
    tuned(num_workers=2, prefetch_factor=5, persistent_workers=True)
    loader: Any = DataLoader(DATA, batch_size=4)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 5, True)


def test_a_loader_without_workers_has_nothing_that_is_for_workers(tuned: Callable[..., Tuned]) -> None:
    tuned(num_workers=0)
    loader: Any = DataLoader(
        DATA, batch_size=4, num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=5,
        multiprocessing_context="spawn",
    )  # fmt: skip
    assert (loader.num_workers, loader.persistent_workers, loader.timeout) == (0, False, 0)
    assert len(list(loader)) == 2


def test_an_iterable_data_set_keeps_its_workers(tuned: Callable[..., Tuned]) -> None:
    tuned(num_workers=3)
    assert DataLoader(Stream(), num_workers=0).num_workers == 0


@pytest.mark.parametrize(("how", "other"), [("fused", "foreach"), ("foreach", "fused")])
def test_an_optimizer_gets_its_kernels_and_its_checks(tuned: Callable[..., Tuned], how: str, other: str) -> None:
    class Own(torch.optim.AdamW):
        pass

    tuned(optimizer=how)
    for kind in (torch.optim.Adam, Own):
        optimizer = kind(parameters(), foreach=how == "fused")
        assert optimizer.defaults[how] is True
        assert not optimizer.defaults[other]
    assert torch.optim.Rprop(parameters()).defaults.get("foreach") is (True if how == "foreach" else None)


def test_a_model_of_torchs_modules_alone_is_compiled(
    tuned: Callable[..., Tuned], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    change = tuned(compile="default")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    torch.optim.SGD(model.parameters(), 0.1)
    before = counters["frames"]["ok"]
    x = torch.ones(2, 4)
    assert torch.equal(model(x), model._call_impl(x))
    assert counters["frames"]["ok"] > before
    assert change.seen is not None
    assert change.seen["refused"] == {}


def test_a_model_that_was_compiled_before_is_refused(tuned: Callable[..., Tuned]) -> None:
    change = tuned(compile="default")
    model = torch.nn.Linear(4, 4)
    model.compile(backend="eager")
    torch.optim.SGD(model.parameters(), 0.1)
    assert change.seen is not None
    assert change.seen["refused"] == {"compile": "RuntimeError: the model is compiled already"}


def test_a_wrong_argument_is_torchs_own_error(tuned: Callable[..., Tuned]) -> None:
    tuned(num_workers=1)
    with pytest.raises(TypeError, match="workers"):
        DataLoader(DATA, workers=3)


def test_a_capture_has_one_change() -> None:
    assert change_for(torch, CaptureConfig(folder=".")) is None
    assert isinstance(change_for(torch, CaptureConfig(folder=".", trial=TrialSetup())), Tuned)
    experiment = ExperimentSetup(name="gc")
    assert isinstance(change_for(torch, CaptureConfig(folder=".", experiment=experiment)), Injected)
