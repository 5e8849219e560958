"""What a job computes again, known by what modules are given and give."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from whystall.capture.config import Looks
from whystall.capture.repeats import _MOST_READ, _TIMED, RepeatsSeen
from whystall.capture.sums import sum_of

torch = pytest.importorskip("torch")
SECOND = 1_000_000_000
pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("steps_that_take_no_time")]


class Search(torch.nn.Module):  # type: ignore[name-defined]
    """A user's vector against those of a catalogue."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = (
            torch.nn.Linear(64, 64),
            torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Dropout()),
        )
        self.features = torch.randn(4096, 64)
        self.kept: Any = None

    def forward(self, user: Any) -> Any:
        return self.users(user) @ (self.items(self.features) if self.kept is None else self.kept)[:, :64].T


def seen(step: Callable[[], object], steps: int = 120, *, on_thread: bool = True) -> RepeatsSeen:
    """What was seen of some steps."""
    repeats = RepeatsSeen(torch, lambda: on_thread)
    began = time.perf_counter_ns()
    for _ in range(steps):
        if not repeats.over:
            repeats.step_ended(time.perf_counter_ns() - began)
        began = time.perf_counter_ns()
        step()
    repeats.close()
    return repeats


@pytest.mark.parametrize(("looks", "kinds"), [("none", []), ("few", ["modules"]), ("all", ["modules", "operators"])])
def test_a_user_decides_how_much_is_asked_of_the_job(
    looks: Looks, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the look at operators no dispatch mode is ever active, and the one at modules is as long as with it."""
    monkeypatch.setattr("whystall.capture.repeats._WAITS_NS", 0)
    monkeypatch.setattr("whystall.capture.repeats._FURTHER_NS", 0)
    monkeypatch.setattr("whystall.capture.repeats._ENOUGH_NS", 1 << 60)
    model, repeats, found, modes = Search().eval(), RepeatsSeen(torch, lambda: True, looks), Counter[str](), set()
    for _ in range(120):
        if repeats.over:
            break
        repeats.step_ended(10_000_000)
        if repeats.looking:
            found[repeats.name] += 1
        modes.add(torch._C._len_torch_dispatch_stack())
        with torch.no_grad():
            model(torch.randn(2, 64))
    repeats.close()
    assert repeats.over
    assert list(found) == kinds
    assert found["modules"] in {0, _TIMED + _MOST_READ}
    assert max(modes, default=0) == ("operators" in kinds)
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.fixture
def model() -> Iterator[Any]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield Search().eval()


def test_a_part_that_is_given_the_same_each_time_is_computed_again(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.repeats._ENOUGH_NS", 1 << 60)  # however slow the machine
    found = seen(lambda: model(torch.randn(2, 64)), steps=40).found  # single operators come later
    assert found is not None
    assert (found.steps, found.calls) == (16, 16)  # of those that are read the first has nothing before it
    assert 0 < found.error < 0.5
    [part] = found.modules
    assert (part.name, part.function) == ("Sequential", "forward")
    assert part.file.endswith("test_repeats.py")
    assert "self.items(self.features)" in part.text
    assert 0 < part.ns == found.again_ns < found.measured_ns


def test_a_part_called_twice_within_a_step_is_computed_again_once(model: Any) -> None:
    def step() -> None:
        features = torch.randn(4096, 64)
        model.items(features)
        model.items(features)

    found = seen(step).found
    assert found is not None
    assert found.calls == found.steps


def train(model: Any, batch: Callable[[], Any]) -> Callable[[], None]:
    model.train()
    model.kept = torch.randn(4096, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        with torch.enable_grad():
            optimizer.zero_grad()
            model.items(batch()).sum().backward()
            model.users(batch()).sum().backward()
        optimizer.step()

    return step


ONE_BATCH = torch.ones(4096, 64)


@pytest.mark.parametrize("batch", [lambda: torch.randn(4096, 64), lambda: ONE_BATCH])
def test_training_is_no_repetition_however_its_batches_are(model: Any, batch: Callable[[], Any]) -> None:
    assert seen(train(model, batch)).found is None


def test_a_model_that_is_given_one_batch_again_and_again_is_being_measured(model: Any) -> None:
    batch = torch.randn(4096, 64)
    assert seen(lambda: model.items(batch)).found is None


def test_evaluation_of_what_trains_is_no_repetition_and_that_of_what_does_not_is(model: Any) -> None:
    teacher, given = Search(), torch.randn(2, 64)
    step = train(model, lambda: torch.randn(2, 64))

    def evaluates() -> None:
        step()
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                model(given)
        model.train()

    assert seen(evaluates, 40).found is None

    def is_taught() -> None:
        step()
        with torch.no_grad():
            teacher.eval()(given)

    assert seen(is_taught, 40).found is not None


def test_what_chance_changes_is_no_repetition_and_what_comes_before_it_is(model: Any) -> None:
    model.train()  # with dropout
    found = seen(lambda: model(torch.randn(2, 64))).found
    assert found is not None
    # On a busy machine the operator of that layer may have taken longer in its look than the layer in its own.
    assert [part.name for part in found.modules] in (["Linear"], ["aten::addmm"])


def test_what_autograd_calls_again_is_told_by_the_recording(model: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    def step() -> None:
        with torch.enable_grad():
            given = torch.randn(4096, 64, requires_grad=True)
            checkpoint(model.items, given, use_reentrant=False).sum().backward()

    assert seen(step).found is None


class Decoder(torch.nn.Module):  # type: ignore[name-defined]
    """A model of tokens, which can be given what it computed of earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = torch.nn.Embedding(50, 128), torch.nn.Linear(128, 128)

    def forward(self, ids: Any, past_key_values: Any = None) -> Any:
        del past_key_values
        return self.mix(self.words(ids))


class Encoder(Decoder):
    """One that cannot."""

    def forward(self, ids: Any) -> Any:  # type: ignore[override]
        return self.mix(self.words(ids))


def scores(model: Any, lengths: tuple[int, int], calls: int = 4, *, learns: bool = False, grows: int = 0) -> Any:
    """What was seen of steps that give a model some calls with one beginning and what is different after it."""

    def step() -> None:
        with torch.set_grad_enabled(learns):
            beginning = torch.randint(0, 50, (8, lengths[0]))
            for number in range(calls):
                after = torch.randint(0, 50, (8, lengths[1] + number * grows))
                model(torch.cat([beginning, after], dim=1))

    return seen(step, steps=60).found


def test_tokens_that_begin_as_those_of_the_call_before_are_computed_again() -> None:
    """Three of four calls, 300 of 400 places each, and a call takes as long as it has places."""
    found = scores(Decoder(), (300, 100))
    assert found is not None
    assert found.calls == 3 * found.steps
    assert found.shared_ns == found.again_ns
    assert 0 < found.shared_ns < 0.75 * found.measured_ns


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(lambda: scores(Encoder(), (300, 100)), id="a model that cannot remember"),
        pytest.param(lambda: scores(Decoder(), (100, 300)), id="most of it is different"),
        pytest.param(lambda: scores(Decoder(), (300, 100), learns=True), id="training"),
        pytest.param(lambda: scores(Decoder(), (300, 0), calls=1), id="one call each"),
        pytest.param(lambda: scores(Decoder(), (8, 2)), id="few places"),
    ],
)
def test_other_tokens_are_not(found: Callable[[], Any]) -> None:
    told = found()
    assert told is None or told.shared_ns == 0


@pytest.mark.parametrize("learns", [True, False])
def test_calls_that_gradients_go_back_through_are_told_apart(*, learns: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh())

    def step() -> None:
        given = torch.randn(512, 256)
        with torch.set_grad_enabled(learns):
            out = layer(given).sum() + 2 * layer(given).mean()
        if learns:
            out.backward()

    found = seen(step, steps=60).found
    assert found is not None
    assert found.differentiated_ns == (found.again_ns if learns else 0)


@pytest.mark.parametrize("first", ["planned", "learned"])
def test_what_was_planned_without_gradients_is_not_done_again_by_learning(first: str) -> None:
    """Where it was learned first its results were there."""
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh())

    def step() -> None:
        given = torch.randn(512, 256)
        for learns in (False, True) if first == "planned" else (True, False):
            with torch.set_grad_enabled(learns):
                layer(given).sum()

    assert (seen(step, steps=60).found is None) is (first == "planned")


def conditioned(prompts: int, *, learns: bool = True, **encoder: bool) -> RepeatsSeen:
    """A model that learns under prompts, of which each batch has others, by an encoder that does not."""
    torch.manual_seed(0)
    given = torch.randint(0, 500, (prompts, 24))
    frozen = torch.nn.Sequential(
        torch.nn.Embedding(500, 64), torch.nn.Dropout(), torch.nn.Linear(64, 512), torch.nn.Linear(512, 64)
    )
    frozen.train(encoder.get("drops", False)).requires_grad_(False)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        text = frozen(given[torch.randint(0, prompts, (16,))])
        with torch.set_grad_enabled(learns):
            loss = model(text).square().mean()
        if learns:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if encoder.get("changes"):
            with torch.no_grad():
                frozen[2].bias += 0.1

    return seen(step, steps=60)


def test_a_frozen_part_that_is_given_few_samples_in_other_batches_computes_them_again() -> None:
    found = conditioned(12).found
    assert found is not None
    assert found.differentiated_ns == 0
    assert found.again_ns > 0.4 * found.measured_ns


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: conditioned(50_000), id="other samples"),
        pytest.param(lambda: conditioned(12, changes=True), id="weights that change"),
        pytest.param(lambda: conditioned(12, drops=True), id="chance"),
        pytest.param(lambda: conditioned(12, learns=False), id="requests"),
    ],
)
def test_samples_that_are_new_or_give_something_else_are_not(other: Callable[[], RepeatsSeen]) -> None:
    found = other().found
    assert found is None or found.again_ns < 0.15 * found.measured_ns  # what comes before a dropout is the same again


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_matrices_of_few_entries_are_read_as_others(layout: Any) -> None:
    def sum_in(matrix: Any) -> object:
        return sum_of(torch, matrix if layout is torch.strided else matrix.to_sparse(layout=layout))

    eye = torch.eye(8)
    assert sum_in(eye) is not None
    assert sum_in(eye) == sum_in(eye.clone())
    assert len({sum_in(one) for one in (eye, 2 * eye, eye.flip(0), torch.eye(9))}) == 4


@pytest.mark.parametrize("changes", [False, True])
def test_a_matrix_of_a_graph_that_each_layer_makes_anew_is_computed_again(*, changes: bool) -> None:
    places = torch.randint(0, 2_000, (2, 20_000))
    weights = torch.ones(20_000)

    def step() -> None:
        for _ in range(2):
            given = torch.rand(20_000) if changes else weights
            torch.sparse_coo_tensor(places, given, (2_000, 2_000), check_invariants=False).coalesce()
        torch.randn(400, 400) @ torch.randn(400, 400)  # something new, that takes its part of the step

    found = seen(step, steps=150).found
    if changes:
        assert found is None
    else:
        assert found is not None
        assert found.calls == 2 * found.steps
        assert 0 < found.again_ns < found.measured_ns


@pytest.mark.parametrize("given", [torch.ones(64, 64, dtype=torch.complex64), object()])
def test_what_cannot_be_read_was_never_the_same(model: Any, given: object) -> None:
    class Part(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, what: object) -> Any:
            return model.features @ model.features.T if what is given else None

    part = Part()

    def step() -> None:
        part(given)
        model.users(torch.randn(2, 64))

    assert seen(step, steps=40).found is None  # operators, which come later, are given matrices that can be read


def test_other_threads_and_calls_that_fail_are_left_out(model: Any) -> None:
    assert seen(lambda: model(torch.randn(2, 64)), on_thread=False).found is None

    class Fails(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, user: Any) -> Any:
            model(user)
            raise ValueError

    fails = Fails()

    def step() -> None:
        with pytest.raises(ValueError, match=r"^$"):
            fails(torch.randn(2, 64))
        model.users(torch.randn(2, 64))

    repeats = seen(step)
    assert repeats.found is None or repeats.found.calls <= repeats.found.steps
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


# Calls are timed in three steps. Where modules show little, operators are looked at: those that are long in such steps
# are none in the others.
@pytest.mark.parametrize(("step_ns", "steps"), [(SECOND // 1000, 29), (100 * SECOND, 10)])
def test_a_look_is_over_after_a_second_or_twenty_steps(model: Any, step_ns: int, steps: int) -> None:
    repeats = RepeatsSeen(torch, lambda: True)
    looked = 0
    while not repeats.over:
        repeats.step_ended(step_ns + looked)
        looked += repeats.looking
        model(torch.randn(2, 64))
    assert looked == steps


def test_a_short_job_leaves_its_steps_to_the_samples(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.repeats._WAITS_NS", 3 * SECOND)
    repeats = RepeatsSeen(torch, lambda: True)
    looked = []
    for _ in range(60):
        repeats.step_ended(SECOND // 10)
        looked.append(repeats.looking)
        model(torch.randn(2, 64))
    repeats.close()
    assert looked.index(True) == 30  # three seconds have passed


def test_numbers_of_a_job_that_diverged_are_no_repetition() -> None:
    """All that are no numbers look alike."""
    lost = torch.nn.Linear(64, 4096)
    with torch.no_grad():
        lost.weight.fill_(float("nan"))
    assert seen(lambda: lost(torch.randn(256, 64))).found is None


class Questions(torch.nn.Module):  # type: ignore[name-defined]
    """Padded questions through torch's own encoder, which makes nested tensors of them where nothing is trained."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, 2)
        self.catalogue = torch.randn(20_000, 32)

    def forward(self, given: Any, padding: Any) -> Any:
        return self.body(given, src_key_padding_mask=padding)[:, 0] @ torch.nn.functional.normalize(self.catalogue).T


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_passed_over_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.repeats._ENOUGH_NS", 1 << 60)
    model, padding = Questions().eval(), torch.arange(16)[None] >= torch.tensor([[16], [5], [9], [12]])
    with torch.inference_mode():
        found = seen(lambda: model(torch.randn(4, 16, 32), padding)).found
    assert found is not None
    assert "catalogue" in found.modules[0].text


@pytest.mark.parametrize("what", ["sum_of", "place_of", "is_differentiated"])
def test_a_look_that_fails_is_its_own_affair(model: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a tensor of the job's that cannot be read")

    for room in ("repeated_modules", "repeated_operators"):
        monkeypatch.setattr(f"whystall.capture.{room}.{what}", fails, raising=False)
    results: list[Any] = []
    found = seen(lambda: results.append(model(torch.ones(2, 64))))
    assert found.over
    assert len(results) == 120
    assert not torch.nn.modules.module._global_forward_hooks


def test_a_large_tensor_is_the_same_while_it_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.sums._MOST_BYTES", 1 << 16)
    monkeypatch.setattr("whystall.capture.sums._OF_LARGE", 1 << 12)
    large = torch.randn(1000, 64)
    first = sum_of(torch, large)
    assert first is not None
    assert sum_of(torch, large) == first
    large[999, 63] = 7.0  # in no sample
    assert sum_of(torch, large) != first
    assert sum_of(torch, large.clone()) != sum_of(torch, large)
    assert sum_of(torch, large.T) == sum_of(torch, large.T) != sum_of(torch, large)
    assert sum_of(torch, large[:, :50]) is None  # with gaps
    few = torch.randn(1000, 1)
    assert sum_of(torch, few.expand(1000, 64)) == sum_of(torch, few.clone().expand(1000, 64))  # is not large
    with torch.inference_mode():
        assert sum_of(torch, torch.randn(1000, 64)) is None  # nobody counts what is written to it


def test_another_large_tensor_in_its_place_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.sums._MOST_BYTES", 1 << 16)
    monkeypatch.setattr("whystall.capture.sums._OF_LARGE", 1 << 12)
    sums = set()
    for _ in range(20):
        sums.add(sum_of(torch, torch.randn(1000, 64)))  # the allocator gives the same memory again
    assert len(sums) == 20


@pytest.fixture
def batches() -> list[Any]:
    """Five, as of a stream that was recorded once."""
    torch.manual_seed(1)
    return [torch.randn(2, 64) for _ in range(5)]


def test_a_model_that_is_measured_on_a_few_batches_in_turn_does_nothing_twice(model: Any, batches: list[Any]) -> None:
    model.kept = torch.randn(64, 4096)
    given = itertools.cycle(batches)
    assert seen(lambda: model.users(next(given).repeat(2048, 1))).found is None


def test_what_is_the_same_in_every_step_is_told_of_batches_in_turn_as_well(
    model: Any, batches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whystall.capture.repeats._MORE", float("inf"))  # however long the same takes its operators
    given = itertools.cycle(batches)
    found = seen(lambda: model(next(given))).found
    assert found is not None
    assert [one.name for one in found.modules][:1] == ["Sequential"]


@pytest.mark.parametrize("mixed", ["random", "new ones"])
def test_batches_that_come_again_by_themselves_are_told(
    model: Any, batches: list[Any], mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whystall.capture.repeats._ENOUGH_NS", 1 << 60)  # however slow the machine
    model.kept = torch.randn(64, 4096)
    given, order = itertools.count(), random.Random(3)  # noqa: S311 - nothing secret

    def step() -> None:
        at = next(given)
        again = order.choice(batches) if mixed == "random" else batches[at % 5] if at % 8 else torch.randn(2, 64)
        model.users(again.repeat(2048, 1))

    found = seen(step).found
    assert found is not None
    # the layer, or the one operator in it where others on the cores made that longer when it was read
    assert found.modules[0].name in {"Linear", "aten::addmm"}
    assert "model.users(again" in found.modules[0].text


def test_a_part_that_is_given_a_few_in_turn_beside_another_that_is_not_is_told(model: Any, batches: list[Any]) -> None:
    """A few prompts in turn, encoded again for each picture that is made of them."""
    prompts = itertools.cycle(batches)

    def step() -> None:
        model.items(next(prompts).repeat(512, 1))
        model.users(torch.randn(64, 64))

    found = seen(step).found
    assert found is not None
    assert found.modules[0].name == "Sequential"


def service(keys: int, *, orders: bool = True, learns: bool = False) -> RepeatsSeen:
    """Answers that take what belongs to one of some keys, drawn by chance, and orders that are new each time."""
    torch.manual_seed(0)
    given = torch.randn(keys, 64, 64)
    encoder, head = torch.nn.Linear(64, 512), torch.nn.Linear(64, 8)

    def step() -> None:
        with torch.set_grad_enabled(learns):
            out = encoder(given[torch.randint(0, keys, ()).item()]).sum()
            if orders:
                out = out + head(torch.randn(4, 64)).sum()
        if learns:
            out.backward()

    return seen(step, steps=60)


def test_a_part_of_what_is_asked_that_comes_again_by_itself_is_told_with_all_its_calls() -> None:
    found = service(12).found
    assert found is not None
    assert 2 <= found.calls < found.kind_calls == found.steps
    assert found.again_ns < found.kind_ns <= found.measured_ns


@pytest.mark.parametrize("other", [{"orders": False}, {"learns": True}], ids=["all of it", "training"])
def test_whole_requests_that_come_again_and_training_are_no_such_part(other: dict[str, bool]) -> None:
    found = service(12, **other).found
    assert found is None or found.kind_ns == 0


def test_what_all_tokens_of_an_answer_are_given_is_told_of_all_modules_that_are_given_it() -> None:
    """A decoder that makes keys and values of the source for each token: the source is another one now and then."""
    torch.manual_seed(0)
    keys, values, head = torch.nn.Linear(64, 256), torch.nn.Linear(64, 256), torch.nn.Linear(64, 8)
    token = itertools.count()
    source = torch.randn(64, 64)

    def step() -> None:
        nonlocal source
        if next(token) % 14 == 0:
            source = torch.randn(64, 64)
        with torch.no_grad():
            keys(source), values(source), head(torch.randn(4, 64))

    found = seen(step, steps=120).found
    assert found is not None
    assert found.kind_ns == 0
    assert found.calls > 1.5 * found.steps
    # On a busy machine the operators may have taken longer in their look than the layers in theirs.
    assert {part.name for part in found.modules} <= {"Linear", "aten::linear", "aten::addmm"}


def test_what_nothing_reads_is_told_beside_what_is_computed_again() -> None:
    net, given = torch.nn.Linear(64, 4096), torch.randn(256, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        out = net(given + torch.randn(256, 64))
        out.detach().abs().flatten().kthvalue(9)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()

    watched = seen(step, steps=120)
    assert watched.unread is not None
    assert {"aten::kthvalue", "aten::abs"} >= {one.name for one in watched.unread.modules}
    assert watched.told()["unread"] is watched.unread
