"""What a job computes again outside of modules, known by what operators are given."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.capture.test_repeats import seen

from whystall.capture.repeats import RepeatsSeen

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("steps_that_take_no_time")]
CATALOGUE = torch.randn(20_000, 64)


def rank(query: Any) -> Any:
    """A request against vectors that are normalised again for each."""
    normal = CATALOGUE / CATALOGUE.norm(dim=1, keepdim=True)
    return (normal @ query).topk(8)


def stack() -> int:
    depth: int = torch._C._len_torch_dispatch_stack()
    return depth


def test_what_only_constants_go_into_is_computed_again() -> None:
    found = seen(lambda: rank(torch.randn(64))).found
    assert found is not None
    assert {one.name for one in found.modules} <= {"aten::linalg_vector_norm", "aten::div"}
    assert {one.function for one in found.modules} == {"rank"}
    assert all("CATALOGUE" in one.text for one in found.modules)
    assert found.again_ns > 0.3 * found.measured_ns
    assert stack() == 0


@pytest.mark.parametrize(("evaluated_first", "times"), [(True, 0), (False, 1)])
def test_training_cannot_use_what_an_evaluation_computed_from_the_same(evaluated_first: bool, times: int) -> None:
    """The weights of one step are evaluated, and then learned from; within one step one result would do for both."""
    weight = torch.randn(400, 400, requires_grad=True)
    given = torch.randn(400, 400)

    def step() -> None:
        with torch.no_grad():
            weight.add_(0.01)
            if evaluated_first:
                (given @ weight).sum()
        (given @ weight).sum().backward()
        if not evaluated_first:
            with torch.no_grad():
                (given @ weight).sum()

    found = seen(step).found
    assert (0 if found is None else round(sum(one.name == "aten::mm" for one in found.modules))) == times


def test_steps_that_were_kept_off_their_core_do_not_end_the_look() -> None:
    late = RepeatsSeen(torch, lambda: True)
    late._looks = late._looks[1:]  # operators alone, which come after 24 steps
    for _ in range(25):
        late.step_ended(1)
    assert late.looking
    for kept_off_ns in (1 << 40, 1, 1 << 40, *[0] * 8):  # no call takes a hundredth of such steps
        began = time.perf_counter_ns()
        rank(torch.randn(64, 32))
        late.step_ended(time.perf_counter_ns() - began + kept_off_ns)
    assert late.found is not None


class Service:
    """Requests under inference mode, whose steps end within it."""

    def __init__(self) -> None:
        self.repeats = RepeatsSeen(torch, lambda: True)
        self.encoder = torch.nn.Linear(64, 64)
        self.began = time.perf_counter_ns()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def handle(self, *, ends: bool = True) -> None:
        query = self.encoder(torch.randn(64))
        if ends and not self.repeats.over:
            self.repeats.step_ended(time.perf_counter_ns() - self.began)
        self.began = time.perf_counter_ns()
        rank(query)


def test_steps_that_end_within_inference_mode_are_looked_at() -> None:
    service = Service()
    for _ in range(120):
        service.handle()
    assert service.repeats.over
    assert service.repeats.found is not None
    assert {one.function for one in service.repeats.found.modules} == {"rank"}
    assert stack() == 0


@pytest.mark.parametrize("within", [True, False])
def test_a_mode_is_taken_out_wherever_steps_end(*, within: bool) -> None:
    """Else operators would be dispatched to no mode, and the job would end."""
    repeats = RepeatsSeen(torch, lambda: True)

    def step(*, inside: bool) -> None:
        with torch.inference_mode(inside):
            rank(torch.randn(64))
            repeats.step_ended(10_000_000)

    for _ in range(120):
        if stack() == 0:
            step(inside=within)
    assert stack() == 1
    for _ in range(120):
        step(inside=not within)
        rank(torch.randn(64)).values.numpy()  # turns dispatch to modes on again, where one is on the stack
    assert repeats.over
    assert stack() == 0
    rank(torch.randn(64))


def test_a_request_that_is_handed_on_as_an_array_goes_on() -> None:
    """Dispatch to the mode is on again after `numpy()`, outside of the inference in which steps end."""
    service = Service()
    for _ in range(120):
        service.handle()
        torch.ones(3).numpy()
    assert service.repeats.over
    assert service.repeats.found is not None
    assert stack() == 0
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)
    torch.ones(3).numpy()


def test_one_inference_around_all_requests_and_one_around_each_are_followed() -> None:
    repeats = RepeatsSeen(torch, lambda: True)
    enter, leave = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    with torch.inference_mode():
        for _ in range(120):
            with torch.inference_mode():
                rank(torch.randn(64)).values.numpy()
                repeats.step_ended(10_000_000)
        assert repeats.over
        assert stack() == 0
        torch.ones(3).numpy()
    torch.ones(3).numpy()
    assert (torch.inference_mode.__enter__, torch.inference_mode.__exit__) == (enter, leave)


def test_the_compiler_is_not_imported_into_the_job() -> None:
    """It takes a second and more, in the midst of a step."""
    code = (
        "import sys, torch\n"
        "from whystall.capture.repeated_operators import _mode_of\n"
        "with _mode_of(lambda function, given, named: function(*given, **named)):\n"
        "    torch.ones(3) + 1\n"
        "print([name for name in sys.modules if name.startswith(('torch._dynamo.', 'sympy'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


MATRIX = torch.eye(300) * 4 + torch.randn(300, 300) / 20


@pytest.mark.parametrize("constant", [True, False])
def test_a_matrix_that_is_factored_again_for_other_right_sides_is_told(constant: bool) -> None:
    def step() -> None:
        matrix = MATRIX if constant else MATRIX + torch.rand(())
        torch.linalg.solve(matrix, torch.randn(300, 40))

    found = seen(step).found
    if constant:
        assert found is not None
        assert found.modules[0].name.endswith("linalg_solve_ex")
    else:
        assert found is None


ADJACENCY = (torch.rand(600, 600) < 0.01).float()


def test_zeros_in_what_is_multiplied_are_counted() -> None:
    features = torch.randn(600, 700)

    def step() -> None:
        ADJACENCY @ (features * torch.rand(())) @ torch.randn(700, 500)

    seen_matrices = seen(step).contents.sparse()
    [adjacency] = seen_matrices
    assert (adjacency.rows, adjacency.columns) == (600, 600)
    assert adjacency.share == pytest.approx(float(ADJACENCY.mean()))


def test_zeros_of_a_matrix_that_has_another_size_in_each_step_are_counted() -> None:
    sizes = iter(range(500, 1_000))

    def step() -> None:
        size = next(sizes)
        torch.eye(size) @ torch.randn(size, 300)

    matrices = seen(step).contents.sparse()
    assert len(matrices) > 1
    assert all(one.rows == one.columns and one.share == pytest.approx(1 / one.rows) for one in matrices)


HIDDEN, HEAD = torch.randn(8, 64, 32), torch.randn(32, 500, requires_grad=True)


@pytest.mark.parametrize("by_place", [False, True])
def test_labels_that_a_loss_ignores_are_counted(by_place: bool) -> None:
    labels = torch.randint(500, (8, 64)).masked_fill(torch.arange(64) % 4 != 0, -7)

    def step() -> None:
        scores = HIDDEN @ HEAD
        given = (scores.transpose(1, 2), labels) if by_place else (scores.flatten(0, 1), labels.flatten())
        torch.nn.functional.cross_entropy(*given, ignore_index=-7).backward()

    [found] = seen(step).contents.labels()
    assert (found.rows, found.columns, found.share) == (512, 500, 0.25)


def test_labels_that_all_count_are_not_told() -> None:
    labels = torch.randint(500, (512,))
    assert (
        seen(lambda: torch.nn.functional.cross_entropy((HIDDEN @ HEAD).flatten(0, 1), labels)).contents.labels() == []
    )


EDGES = torch.randint(100_000, (200_000,))


def of_edges(way: str, number: Iterator[int]) -> None:
    """The degrees of a graph, of which only finding what is there once takes long."""
    nodes = torch.unique(EDGES + next(number) if way == "shifted" else EDGES)[:64]
    if way == "with chance":
        nodes = nodes + torch.randint(9, (64,))
    elif way == "with a number":
        nodes = nodes + next(number)
    elif way == "written to":
        nodes.add_(torch.randint(9, (64,)))
    degree = torch.zeros(64).index_add_(0, nodes // 3 % 64, torch.ones(64))
    (degree.clamp(min=1).rsqrt() * torch.randn(2_000, 64)) @ torch.randn(64, 500)  # something new, that takes long


@pytest.mark.parametrize(
    ("way", "calls"),
    [("plain", 6), ("with chance", 1), ("with a number", 1), ("written to", 1)],
)
def test_what_follows_from_what_comes_again_alone_comes_again(way: str, calls: int) -> None:
    """`unique`, `//`, `%`, `index_add_`, `clamp` and `rsqrt`; what makes numbers of nothing and what draws them not."""
    number = iter(range(10_000))
    found = seen(lambda: of_edges(way, number)).found
    assert found is not None
    assert found.calls == calls * found.steps
    assert found.modules[0].name == "aten::_unique2"


def test_what_follows_from_something_new_does_not() -> None:
    number = iter(range(10_000))
    assert seen(lambda: of_edges("shifted", number)).found is None


WEIGHT = torch.randn(512, 512, requires_grad=True)
ONE_BATCH = torch.randn(512, 512)


def train() -> None:
    """The same batch in each step: it is the weights that are new."""
    (ONE_BATCH @ WEIGHT).square().sum().backward()
    with torch.no_grad():
        WEIGHT.sub_(1e-9 * WEIGHT.grad)
        WEIGHT.grad = None


def draws() -> None:
    """What chance makes of the same."""
    torch.nn.functional.dropout(CATALOGUE, 0.5).sum(dim=1).topk(8)
    rank_of_new = CATALOGUE @ torch.randn(64)
    rank_of_new.topk(8)


def copies() -> None:
    """A copy to write to."""
    mine = CATALOGUE.clone()
    mine.mul_(torch.rand(()))


def measures() -> None:
    """Nothing new comes in: somebody times it."""
    (CATALOGUE @ CATALOGUE[:64].T).topk(8)


def loads() -> None:
    for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(CATALOGUE[:512]), batch_size=512):
        batch @ torch.randn(64, 4096)


@pytest.mark.parametrize("step", [train, draws, copies, measures, loads])
def test_others_are_not(step: Callable[[], None]) -> None:
    assert seen(step).found is None
    assert stack() == 0


def test_a_mode_of_somebody_else_is_left_alone() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert seen(lambda: rank(torch.randn(64))).found is None
        assert stack() == 1
    assert stack() == 0


def test_a_mode_that_somebody_puts_on_it_ends_as_he_wants() -> None:
    """One that is entered in a step and left in another, with ours below it."""
    from torch.utils.flop_counter import FlopCounterMode

    modes: list[Any] = []

    def step() -> None:
        rank(torch.randn(64, 1)[:, 0])
        if stack() == 1 and not modes:
            modes.append(FlopCounterMode(display=False))
            modes[0].__enter__()
            CATALOGUE @ torch.randn(64, 8)

    repeats = seen(step, 120)
    assert not repeats.looking
    assert not repeats.over
    modes[0].__exit__(None, None, None)
    assert modes[0].get_total_flops() == 2 * CATALOGUE.numel() * 8
    repeats.step_ended(1)
    assert repeats.over
    assert stack() == 0


def test_tensors_that_fail_when_they_are_read_end_the_look_and_not_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("not to be read")

    monkeypatch.setattr("whystall.capture.repeated_operators.sum_of", fails)
    assert seen(lambda: rank(torch.randn(64))).found is None
    assert stack() == 0


def test_the_results_of_a_job_are_the_same_to_the_bit() -> None:
    def run(look: bool) -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.LSTM(64, 32))
        optimizer = torch.optim.AdamW(model.parameters())
        out = []

        def step() -> None:
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4, 64))[0].square().mean()
            loss.backward()
            optimizer.step()
            out.append(loss.item())

        if look:
            seen(step, 120)
        else:
            for _ in range(120):
                step()
        return out

    assert run(look=True) == run(look=False)
