"""What operators give that nothing reads: what is thrown away is told, and all that somebody may still want is not."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from whystall.capture.moments import in_backward
from whystall.capture.repeated_operators import _mode_of
from whystall.capture.unread import _READS, Unread
from whystall.run_folder.observations import RepeatedWork

torch = pytest.importorskip("torch")
Step = Callable[[], object]
STEPS, EACH_NS, STEP_NS = 5, 1000, 1_000_000
last: dict[str, Any] = {}


def unread_in(step: Step) -> RepeatedWork | None:
    """What nothing reads of some steps, after a first one that nobody follows; each operator takes a microsecond."""
    return followed(step).told()


def followed(step: Step) -> Unread:
    """All that is seen of some steps."""
    seen = Unread(torch)

    def called(function: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> object:
        output = function(*given, **named)
        seen.note(function, given, named, output, EACH_NS, sys._getframe(2), back=in_backward(torch))
        return output

    step()
    seen.begin()
    with _mode_of(called):
        for _ in range(STEPS):
            step()
            seen.step_ended(STEP_NS)
    seen.close()
    return seen


class Wasteful(torch.autograd.Function):  # type: ignore[name-defined]
    """A product whose backward pass makes the gradient of the data as well."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight.T, x.T @ grads[0]


def network(*more: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), *more)


def training(beside: Callable[[Any], object] = lambda _: None, optimizer: str = "Adam", **options: Any) -> Step:
    """A step of training, in which something is done with the output besides."""
    net = network(torch.nn.Dropout(0.1), torch.nn.Linear(16, 4))
    learns = getattr(torch.optim, optimizer)(net.parameters(), lr=1e-3, **options)
    given, labels = torch.randn(32, 8), torch.randint(4, (32,))

    def step() -> None:
        learns.zero_grad()
        out = net(given)
        beside(out)
        torch.nn.functional.cross_entropy(out, labels).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        learns.step()

    return step


def thrown_away(out: Any) -> None:
    out.detach().abs().flatten().kthvalue(9)


def overwritten(out: Any) -> None:
    """Kept, and put in its place in the next step before anybody has read it."""
    last["seen"] = out.detach().mul(2)


def wasted_gradient() -> Step:
    weight, given = torch.randn(8, 8, requires_grad=True), torch.randn(16, 8)

    def step() -> None:
        Wasteful.apply(given, weight).sum().backward()
        with torch.no_grad():
            weight.sub_(1e-3 * weight.grad)
        weight.grad = None

    return step


def unused_head() -> Step:
    net, head, given = network(), torch.nn.Linear(16, 100), torch.randn(32, 8)
    learns = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        hidden = net(given)
        with torch.no_grad():
            head(hidden)
        learns.zero_grad()
        hidden.sum().backward()
        learns.step()

    return step


@pytest.mark.parametrize(
    ("step", "operators"),
    [
        (training(thrown_away), {"aten::abs", "aten::kthvalue"}),
        (training(overwritten), {"aten::mul"}),
        (wasted_gradient(), {"aten::mm"}),
        (unused_head(), {"aten::addmm"}),
    ],
    ids=["a percentile", "a variable", "a gradient", "a head"],
)
def test_what_is_thrown_away_is_told_with_its_line(step: Step, operators: set[str]) -> None:
    found = unread_in(step)
    assert found is not None
    assert {one.name for one in found.modules} == operators
    assert found.steps == STEPS - 1
    assert found.calls == len(operators) * found.steps
    assert found.again_ns == found.calls * EACH_NS
    assert {one.file.rpartition("/")[2] for one in found.modules} == {"test_unread.py"}


kept: list[Any] = []


def kept_for_later(out: Any) -> None:
    """Read in the step after the next one."""
    kept.append(out.detach().abs())
    if len(kept) > 2:
        float(kept.pop(0).sum())


@pytest.mark.parametrize(
    "beside",
    [
        lambda out: out.detach().abs().max().item(),
        lambda out: out.detach().argmax(1).numpy().sum(),
        lambda out: out.detach().argmax(1).tolist(),
        lambda out: str(out.detach().mul(2)),
        lambda out: bool((out > 0).all()),
        lambda out: len(torch.nonzero(out.detach() > 0)),
        lambda out: pickle.dumps(out.detach().mul(2)),
        lambda out: torch.save(out.detach().mul(2), io.BytesIO()),
        lambda out: copy.deepcopy(out.detach().mul(2)).sum().item(),
        lambda out: np.from_dlpack(out.detach().mul(2)).sum(),
        lambda out: [float(one) for one in out.detach().mul(2).unbind()[0]],
        kept_for_later,
    ],
)
def test_what_python_reads_or_keeps_is_not(beside: Callable[[Any], object]) -> None:
    assert unread_in(training(beside)) is None


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("Adam", {}),
        ("Adam", {"foreach": True}),
        ("AdamW", {"fused": True}),
        ("SGD", {"momentum": 0.9, "foreach": False}),
        ("RMSprop", {"centered": True}),
        ("Adagrad", {}),
    ],
)
def test_of_a_usual_training_everything_is_read(optimizer: str, options: dict[str, Any]) -> None:
    assert unread_in(training(optimizer=optimizer, **options)) is None


def recurrent() -> Step:
    net = torch.nn.LSTM(8, 16, batch_first=True)
    given = torch.randn(4, 12, 8)
    return lambda: net(given)[0].sum().backward()


def averaged() -> Step:
    net, teacher = network(), network()
    given = torch.randn(32, 8)
    learns = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step() -> None:
        with torch.no_grad():
            target = teacher(given)
        learns.zero_grad()
        (net(given) - target).square().mean().backward()
        learns.step()
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), net.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)

    return step


def penalized() -> Step:
    net, given = network(torch.nn.Linear(16, 1)), torch.randn(32, 8, requires_grad=True)

    def step() -> None:
        [slope] = torch.autograd.grad(net(given).sum(), given, create_graph=True)
        (slope.norm(dim=1) - 1).square().mean().backward()

    return step


def checkpointed() -> Step:
    net, given = network(torch.nn.Linear(16, 4)), torch.randn(32, 8)
    return lambda: torch.utils.checkpoint.checkpoint(net, given, use_reentrant=False).sum().backward()


def embedded() -> Step:
    table = torch.nn.Embedding(100, 8, sparse=True)
    learns = torch.optim.SparseAdam(list(table.parameters()))
    given = torch.randint(100, (32, 4))

    def step() -> None:
        learns.zero_grad()
        table(given).sum().backward()
        learns.step()

    return step


def written_into() -> Step:
    """Rows of a memory that is read in a later step, by a view."""
    memory, at = torch.zeros(4, 8), [0]

    def step() -> None:
        memory[at[0] % 4].copy_(torch.randn(8).mul(2))
        at[0] += 1
        if at[0] % 3 == 0:
            float(memory.sum())

    return step


def attentive() -> Step:
    net = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    given = torch.randn(4, 6, 16)
    return lambda: net(given).sum().backward()


@pytest.mark.parametrize(
    "job",
    [recurrent, averaged, penalized, checkpointed, embedded, written_into, attentive],
    ids=lambda job: job.__name__,
)
def test_of_other_jobs_everything_is_read(job: Callable[[], Step]) -> None:
    found = unread_in(job())
    # Without an optimizer the gradients are kept, and of data that needs none nobody makes any.
    assert found is None or found.again_ns < 0.01 * found.measured_ns, found


@pytest.mark.parametrize(
    ("layer", "read"),
    [
        pytest.param(torch.nn.BatchNorm1d(16), True, id="statistics"),
        pytest.param(torch.nn.BatchNorm1d(16).eval(), False, id="evaluated"),
        pytest.param(torch.nn.BatchNorm1d(16, track_running_stats=False), False, id="statistics of each batch alone"),
    ],
)
def test_statistics_that_a_layer_keeps_are_read(layer: Any, *, read: bool) -> None:
    """They may be all that is wanted of a forward pass."""
    net, given = torch.nn.Sequential(torch.nn.Linear(8, 16), layer), torch.randn(32, 8)
    trained = training()

    def step() -> None:
        with torch.no_grad():
            net(given)
        trained()

    assert (unread_in(step) is None) is read


def test_who_serves_and_reads_no_answer_measures_a_model() -> None:
    net, given = network().eval(), torch.randn(32, 8)

    def step() -> None:
        with torch.inference_mode():
            for _ in range(200):
                net(given)

    assert unread_in(step) is None


def test_tensors_have_their_own_methods_again() -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("numpy", "tolist", "untyped_storage", "__array__")}
    own = set(torch.Tensor.__dict__)
    unread_in(training())
    assert all(getattr(torch.Tensor, name) is method for name, method in before.items())
    assert set(torch.Tensor.__dict__) == own


TOKENS, WIDE, EXPERTS = 64, 16, 4


def joined(way: str, at: int, expert: Any, tokens: Any, out: Any) -> Any:
    """What there is, and what an expert makes of its tokens, in some ways of writing it."""
    number = torch.arange(TOKENS) % EXPERTS
    mask, gate = (number == at)[:, None], (number == at)[:, None].float()
    if way == "picked":
        rows = mask[:, 0].nonzero().squeeze(-1)
        return out.index_add(0, rows, expert(tokens[rows]))
    if way == "in three dimensions":
        made = expert(tokens.view(4, TOKENS // 4, WIDE))
        return out + torch.where(mask.view(4, -1, 1), made, 0.0).view(TOKENS, WIDE)
    made = expert(tokens)
    if way == "of a batch's statistics":
        made = made / made.std(0)
    added = {
        "gates": lambda: gate * made,
        "soft": lambda: (0.1 + gate) * made,
        "filled": lambda: made.masked_fill(~mask, 0.0),
        "most": lambda: torch.where((number > 0)[:, None], made, 0.0),
    }.get(way)
    if added is not None:
        return out + added()
    weight = torch.rand(TOKENS, 1) if way == "weighed" else 1.0
    return torch.where(mask.expand(-1, WIDE) if way == "by numbers" else mask, made * weight, out)


def mixture(way: str, *, learns: bool) -> Step:
    """A mixture of experts on tokens, each of which goes to one of them."""
    torch.manual_seed(0)
    experts = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(WIDE, 2 * WIDE), torch.nn.GELU(), torch.nn.Linear(2 * WIDE, WIDE))
        for _ in range(EXPERTS)
    )
    learner = torch.optim.SGD(experts.parameters(), lr=1e-3)
    tokens = torch.randn(TOKENS, WIDE)

    def step() -> None:
        with torch.set_grad_enabled(learns):
            out = torch.zeros(TOKENS, WIDE)
            if way == "side by side":
                gates = torch.nn.functional.one_hot(torch.arange(TOKENS) % EXPERTS, EXPERTS).float()
                out = (torch.stack([expert(tokens) for expert in experts], 1) * gates.unsqueeze(-1)).sum(1)
            else:
                for at, expert in enumerate(experts):
                    out = joined(way, at, expert, tokens, out)
        if learns:
            learner.zero_grad()
            out.square().mean().backward()
            learner.step()
        out.tolist()

    return step


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("way", ["where", "gates", "weighed", "filled", "in three dimensions", "side by side"])
def test_rows_that_a_mask_throws_away_are_made_for_nothing(way: str, *, learns: bool) -> None:
    """Two products and what lies between them, four times in a step, of which three of four rows are thrown away."""
    found = followed(mixture(way, learns=learns)).told_masked()
    assert found is not None
    # a microsecond each: two products, what is between them, and what joins the rows again with those kept before
    assert 4 * 3 * 0.75 * EACH_NS <= found.again_ns / found.steps <= 4 * 5 * 0.75 * EACH_NS
    assert {one.name for one in found.modules} >= {"aten::addmm"}
    # what a teacher makes in a step that learns otherwise has no backward pass
    assert found.differentiated_ns <= found.again_ns * learns
    assert found.differentiated_ns >= 0.6 * found.again_ns * learns
    assert "expert(tokens" in next(one.text for one in found.modules if one.name == "aten::addmm")


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("way", ["soft", "picked", "by numbers", "of a batch's statistics", "most"])
def test_rows_that_are_read_are_not(way: str, *, learns: bool) -> None:
    found = followed(mixture(way, learns=learns)).told_masked()
    assert found is None or "aten::addmm" not in {one.name for one in found.modules}


def test_rows_that_somebody_keeps_are_read() -> None:
    torch.manual_seed(0)
    given, mask = torch.randn(TOKENS, WIDE), (torch.arange(TOKENS) < TOKENS // 4)[:, None]

    def step() -> None:
        made = given @ given.T
        torch.where(mask, made, 0.0).sum().item()
        made.tolist()

    found = followed(step).told_masked()
    assert found is None or "aten::mm" not in {one.name for one in found.modules}


@pytest.mark.parametrize(
    "copied",
    [
        lambda x: x.transpose(0, 1).contiguous(),
        lambda x: x.transpose(0, 1).reshape(-1),
        lambda x: x.transpose(0, 1).flatten(),
        lambda x: x.to(torch.float64),
        lambda x: torch.nn.functional.linear(x, torch.eye(16)).chunk(2, -1)[0].contiguous(),
    ],
    ids=["contiguous", "reshape", "flatten", "to", "a half"],
)
def test_what_is_copied_on_the_way_is_read_within_inference(copied: Callable[[Any], Any]) -> None:
    """Keys and values were said to be read by nothing: there a mode hears `contiguous`, which may be a view."""
    weight = torch.randn(16, 16)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def step() -> None:
        keys = copied(torch.randn(4, 16) @ weight)
        last["answer"] = (keys * 2).sum().item()

    assert unread_in(step) is None


def test_a_copy_that_nothing_reads_is_told_within_inference() -> None:
    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def step() -> None:
        torch.randn(4, 16).transpose(0, 1).contiguous()
        last["answer"] = torch.randn(4).sum().item()

    found = unread_in(step)
    assert found is not None
    assert {one.name for one in found.modules} >= {"aten::contiguous"}


def test_methods_of_tensors_are_pickled_and_described_as_ever_while_a_look_goes_on() -> None:
    before = {name: getattr(torch.Tensor, name) for name in _READS}
    seen = Unread(torch)
    seen.begin()
    try:
        for name, method in before.items():
            now = getattr(torch.Tensor, name)
            assert pickle.loads(pickle.dumps(now)) is now  # noqa: S301 - our own
            assert copy.deepcopy(now) is weakref.ref(now)() is now
            assert (now.__name__, now.__doc__) == (method.__name__, method.__doc__)
            assert inspect.isfunction(now)
            if inspect.isfunction(method):
                assert now is method
    finally:
        seen.close()
    assert {name: getattr(torch.Tensor, name) for name in _READS} == before
