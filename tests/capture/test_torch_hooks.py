"""Hooks change no object and replace no function, hold nothing of the user's, and leave nothing behind."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import torch
from torch.utils.data import DataLoader, dataloader

from whystall.capture.known_modules import Known, outermost_module
from whystall.capture.torch_hooks import Listener, TorchHooks

FUNCTIONS = [
    torch.nn.Module.__setstate__,
    torch.optim.Optimizer.__init__,
    DataLoader.__iter__,
    dataloader._BaseDataLoaderIter.__next__,
    torch.amp.GradScaler.step,
    torch.save,
    torch.autograd._engine_run_backward,
    torch.autograd.profiler.profile._prepare_trace,
]
CALLS = [
    *(f"{part}_{side}" for part in ("optimizer", "scaler", "input", "loader", "save") for side in ("begins", "ends")),
    *(f"{part}_{side}" for part in ("forward", "backward") for side in ("begins", "ends")),
    "user_profiler_begins",
]


def there() -> list[Any]:
    """The functions that are in the places of those that are heard, and what they run."""
    found = [getattr(sys.modules[each.__module__], each.__qualname__.split(".")[0]) for each in FUNCTIONS]
    return [
        (owner if name == [] else getattr(owner, name[0]))
        for owner, name in zip(found, (each.__qualname__.split(".")[1:] for each in FUNCTIONS), strict=True)
    ]


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def hooks(heard: list[str]) -> Iterator[TorchHooks]:
    def hears(call: str) -> Any:
        return lambda *_, **_named: heard.append(call)

    before = [each.__code__ for each in FUNCTIONS]
    installed = TorchHooks(torch, cast("Listener", SimpleNamespace(**{call: hears(call) for call in CALLS})))
    installed.install()
    assert there() == FUNCTIONS
    assert all(each.__code__ is not code for each, code in zip(FUNCTIONS, before, strict=True))
    yield installed
    installed.remove()
    assert all(each.__code__ is code for each, code in zip(FUNCTIONS, before, strict=True))
    assert not torch.nn.modules.module._global_parameter_registration_hooks


def stepped(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def test_the_outermost_module_of_an_optimizer_is_watched(hooks: TorchHooks, heard: list[str]) -> None:
    larger = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    hooks.watch_outermost_module(stepped(model))
    larger(torch.ones(1, 8))
    model[0](torch.ones(1, 2))
    assert heard == []
    model(torch.ones(1, 2))
    assert heard == ["forward_begins", "forward_ends"]


def test_constructors_are_let_go_once_the_module_is_known(hooks: TorchHooks) -> None:
    assert torch.nn.modules.module._global_parameter_registration_hooks
    model = torch.nn.Linear(2, 2)
    hooks.watch_outermost_module(stepped(model))
    assert not torch.nn.modules.module._global_parameter_registration_hooks
    assert not torch.nn.modules.module._global_module_registration_hooks


@pytest.mark.filterwarnings("ignore:.*jit.*")
def test_a_call_that_is_traced_is_not_heard(hooks: TorchHooks, heard: list[str]) -> None:
    """What is done in it would be a part of the user's graph: a service ended so with an internal error of torch's."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    hooks.watch_any_module()
    with torch.no_grad():
        torch.jit.trace(model, torch.zeros(1, 4), check_trace=False)
        assert heard == []
        model(torch.zeros(1, 4))
    assert heard == ["forward_begins", "forward_ends"]


def served(kind: str) -> Any:
    """A model in the form that serves, and not as it was made."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).eval()
    given = torch.zeros(1, 4)
    if kind == "scripted":
        return torch.jit.script(model)
    if kind == "loaded":
        file = io.BytesIO()
        torch.jit.save(torch.jit.script(model), file)
        file.seek(0)
        return torch.jit.load(file)
    if kind == "frozen":
        return torch.jit.freeze(torch.jit.trace(model, given))
    if kind == "exported":
        return torch.export.export(model, (given,)).module()
    if kind == "quantized":
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    return torch.jit.trace(model, given)


SERVED: Final = ("traced", "scripted", "loaded", "frozen", "exported", "quantized")


@pytest.mark.filterwarnings("ignore:.*(jit|quantiz|ao|legacy).*")
@pytest.mark.parametrize("kind", SERVED)
def test_a_model_that_serves_in_another_form_is_known_by_its_call(
    hooks: TorchHooks, heard: list[str], kind: str
) -> None:
    model, prepare = served(kind), torch.nn.Softmax(0)
    hooks.watch_any_module()
    hooks.watch_called_module()
    model(prepare(torch.ones(1, 4)))
    heard.clear()
    for _ in range(3):
        model(prepare(torch.ones(1, 4)))
    assert heard == ["forward_begins", "forward_ends"] * 3
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_where_no_model_is_called_nobody_goes_on_asking(hooks: TorchHooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.torch_hooks._MOST_ASKED", 10)

    class Norm(torch.nn.Softmax):
        def state_dict(self, *_: object, **__: object) -> Any:
            raise AssertionError("hooks of the user's may do anything here")

    hooks.watch_called_module()
    norm = Norm(0)
    for place in range(12):
        assert bool(torch.nn.modules.module._global_forward_pre_hooks) is (place <= 10)
        norm(torch.ones(2))


def test_who_begins_to_wait_in_the_midst_of_a_call_takes_the_whole_model(hooks: TorchHooks, heard: list[str]) -> None:
    class Waits(torch.nn.Linear):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            hooks.watch_called_module()
            return super().forward(given)

    model = torch.nn.Sequential(Waits(2, 2), torch.nn.Linear(2, 2))
    model(torch.ones(1, 2))
    model[0] = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2))
    heard.clear()
    model[1](torch.ones(1, 2))
    assert heard == []
    model(torch.ones(1, 2))
    assert heard == ["forward_begins", "forward_ends"]


def test_a_model_that_grows_is_looked_at_again(hooks: TorchHooks, heard: list[str]) -> None:
    first = torch.nn.Linear(2, 2)
    hooks.watch_any_module()
    made = hooks.modules_made
    whole = torch.nn.Sequential(first, torch.nn.Linear(2, 2))
    assert hooks.modules_made > made
    hooks.watch_any_module()
    whole(torch.ones(1, 2))
    assert heard == ["forward_begins", "forward_ends"]  # the part is not watched any more


class InParts(torch.nn.Module):
    """A forecaster whose parts are called one by one, and the whole never."""

    def __init__(self) -> None:
        super().__init__()
        self.site, self.rnn, self.mean = torch.nn.Embedding(9, 2), torch.nn.LSTM(2, 32), torch.nn.Linear(32, 1)

    def predict(self, steps: int = 3) -> None:
        state = None
        for _ in range(steps):
            out, state = self.rnn(self.site(torch.zeros(4, 1, dtype=torch.long)), state)
            self.mean(out)


def test_of_parts_that_are_called_one_by_one_the_largest_is_watched(hooks: TorchHooks, heard: list[str]) -> None:
    model = InParts()
    hooks.watch_any_module()
    hooks.watch_called_module()
    model.predict()
    heard.clear()
    model.predict(5)
    assert heard == ["forward_begins", "forward_ends"] * 5
    assert hooks._watched() is model.rnn
    assert not torch.nn.modules.module._global_forward_pre_hooks


class Service(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner or torch.nn.Linear(2, 2)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.inner(given)
        return answer


def remade() -> torch.nn.Module:
    return pickle.loads(pickle.dumps(Service()))  # noqa: S301 - our own


@pytest.mark.parametrize("made", [Service, lambda: Service(Service()), remade], ids=["anew", "nested", "unpickled"])
@pytest.mark.parametrize("kept", [False, True], ids=["let go", "until the next is there"])
def test_models_that_are_made_for_each_request_are_followed_by_their_class(
    hooks: TorchHooks, heard: list[str], made: Any, kept: bool
) -> None:
    hooks.watch_called_module(its_kind=True)
    made()(torch.ones(1, 2))
    heard.clear()
    model: Any = None
    for _ in range(6):
        if not kept:
            model = None
        model = made()
        model(torch.ones(1, 2))
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
    passes = heard.count("forward_begins")
    assert passes == heard.count("forward_ends")
    assert 5 <= passes <= 6


def test_a_model_that_is_there_is_not_left_for_another_of_its_class(hooks: TorchHooks, heard: list[str]) -> None:
    hooks.watch_called_module(its_kind=True)
    model = Service()
    model(torch.ones(1, 2))
    other = Service()
    heard.clear()
    other(torch.ones(1, 2))
    assert heard == []
    model(torch.ones(1, 2))
    assert heard == ["forward_begins", "forward_ends"]


def test_nothing_is_kept_alive(hooks: TorchHooks) -> None:
    model = torch.nn.Linear(2, 2)
    gone = weakref.ref(model)
    hooks.watch_any_module()
    del model
    gc.collect()
    assert gone() is None


def everything_of(model: torch.nn.Module, stepper: torch.optim.Optimizer) -> dict[str, Any]:
    """What a job writes, copies and sends of a model."""

    def saved(what: object) -> bytes:
        file = io.BytesIO()
        torch.save(what, file)
        return file.getvalue()

    return {
        "saved": saved(model),
        "pickled": pickle.dumps(model),
        "copied": saved(copy.deepcopy(model)),
        "attributes": sorted(vars(model)),
        "hooks": [len(vars(model)[name]) for name in vars(model) if name.endswith("_hooks")],
        "named": [name for name, _ in model.named_modules()],
        "states": pickle.dumps((model.state_dict(), stepper.state_dict())),
        "stepper": pickle.dumps(stepper),
        "scripted": torch.jit.script(copy.deepcopy(model)).code,
        "exported": str(torch.export.export(model, (torch.ones(1, 4),)).graph),
    }


@pytest.mark.filterwarnings("ignore:.*(jit|script).*")
def test_what_is_saved_copied_and_scripted_is_the_same(hooks: TorchHooks, heard: list[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    stepper = stepped(model)
    hooks.watch_outermost_module(stepper)
    model(torch.ones(1, 4)).sum().backward()
    stepper.step()
    watched = everything_of(model, stepper)
    heard.clear()
    pickle.loads(watched["pickled"])(torch.ones(1, 4))  # noqa: S301 - made above
    assert heard == []  # a copy is another model
    hooks.remove()
    assert watched == everything_of(model, stepper)


def test_what_the_user_put_in_a_functions_place_stays(hooks: TorchHooks, monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs() -> None: ...

    monkeypatch.setattr(torch, "save", theirs)
    hooks.remove()
    assert torch.save is theirs


def test_objects_that_are_equal_are_known_apart() -> None:
    class Equal(torch.nn.Linear):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

    known = Known()
    both = [Equal(1, 1), Equal(1, 1)]
    for module in both:
        known.add(module)
        known.add(module)
    assert [id(module) for module in known.living()] == [id(module) for module in both]
    assert outermost_module([], None) is None


@pytest.mark.parametrize(
    ("last", "learns"),
    [
        (torch.nn.ReLU(), False),
        (torch.nn.BatchNorm1d(4), True),
        (torch.nn.BatchNorm1d(4, track_running_stats=False), False),
    ],
    ids=["usual", "statistics", "statistics of each batch alone"],
)
@pytest.mark.parametrize("training", [True, False])
def test_how_a_model_is_called_is_told(last: Any, *, learns: bool, training: bool) -> None:
    """Layers that keep statistics learn without gradients."""
    told: list[dict[str, bool]] = []
    listener = SimpleNamespace(**{call: lambda *_, **_named: None for call in CALLS})
    listener.forward_begins = lambda *_, **how: told.append(how)
    hooks = TorchHooks(torch, cast("Listener", listener))
    hooks.install()
    try:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), last)
        hooks.watch(model)
        model.train(training)
        model(torch.randn(8, 4))
        with torch.no_grad():
            model(torch.randn(8, 4))
    finally:
        hooks.remove()
    assert told == [{"learns": True, "trains": training}, {"learns": learns and training, "trains": training}]


class Refusing(torch.Tensor):
    """Tells nothing of itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in {"dim", "__get__", "numel"}:
            raise TypeError("refused")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_that_refuses_to_be_asked_breaks_no_call(hooks: TorchHooks) -> None:
    model = torch.nn.Identity()
    model.weight = torch.nn.Parameter(torch.ones(1))
    hooks.watch(model)
    given = torch.ones(4, 4).as_subclass(Refusing)
    assert model(given) is given


COMPILED = """
import sys
from types import SimpleNamespace
import torch
def made(given):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)  # torch's compiler follows its constructor, which is heard
    return model(given).sum() * len(optimizer.param_groups)
weight = torch.ones(4, requires_grad=True)
def compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = []
    def backend(graph, _given):
        graphs.append(graph.code)
        return graph.forward
    function = torch.compile(made, backend=backend)
    function(torch.ones(4, 4)), function(torch.ones(4, 4))
    return graphs, dict(torch._dynamo.utils.counters["stats"]), len(torch._dynamo.utils.counters["graph_break"])
before = compiled()
from whystall.capture.torch_hooks import TorchHooks
class Listener:
    def __getattr__(self, name):
        return lambda *_, **_named: None
hooks = TorchHooks(torch, Listener())
hooks.install()
print(compiled() == before, len(before[0]))
hooks.remove()
"""


def test_modules_that_are_made_in_compiled_code_are_compiled_as_ever() -> None:
    """Also where the compiler was at work before, which puts a function of its own over one that is heard."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    same, graphs = done.stdout.split()
    assert (same, int(graphs) > 0) == ("True", True)


def test_hooks_that_are_set_aside_come_back_unless_they_were_removed() -> None:
    from whystall.capture.global_hooks import put, set_aside

    hooks: dict[object, object] = {3: "the job's"}
    stays, goes = put(hooks, lambda *_: None), put(hooks, lambda *_: None)
    before = dict(hooks)
    put_back = set_aside(hooks)
    assert hooks == {3: "the job's"}
    goes()
    put_back()
    assert len(hooks) == 2
    assert hooks.items() <= before.items()
    stays()
    assert hooks == {3: "the job's"}
