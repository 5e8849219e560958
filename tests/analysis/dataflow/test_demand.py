"""Which results nothing reads, held against random programs whose unread results are spoilt."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.dataflow.test_sameness import SIZE, observed

from whystall.analysis.dataflow.chosen_calls import chosen_calls
from whystall.analysis.dataflow.demand import unread

torch: Any = pytest.importorskip("torch")
KEPT: list[Any] = []
STATE: Any = torch.zeros(SIZE, SIZE)


def dead(step: Callable[[], object], folder: Path) -> set[str]:
    """The operators of some steps whose results nothing reads."""
    chosen = chosen_calls(observed(step, folder, steps=4))
    return {chosen.calls[place].node.name.removeprefix("aten::") for place in unread(chosen)}


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda y: None, {"mm", "tanh", "sort"}),
        (lambda y: y.t(), {"mm", "tanh", "sort"}),
        (lambda y: y.sum().item(), {"sort"}),
        (lambda y: y.numpy(), {"sort"}),
        (lambda y: y.tolist(), {"sort"}),
        (lambda y: y[0].numpy(), {"sort"}),
        (lambda y: y.relu_(), {"mm", "tanh", "sort", "relu_"}),
        (lambda y: y.nonzero(), {"sort"}),
        (lambda y: torch.bernoulli(y.sigmoid()), {"sort"}),
        (KEPT.append, {"sort"}),
        (STATE.add_, {"sort"}),
    ],
)
def test_a_result_is_dead_if_nothing_needs_it(tmp_path: Path, read: Callable[[Any], object], found: set[str]) -> None:
    KEPT.clear()

    def step() -> None:
        x = torch.rand(SIZE, SIZE)
        y = torch.tanh(x @ x)
        read(y)
        y.sort()
        x.sum().item()

    # Memory that was freed is used again after some steps.
    chosen = chosen_calls(observed(step, tmp_path, steps=8))
    names = {chosen.calls[place].node.name.removeprefix("aten::") for place in unread(chosen)}
    assert names & {"mm", "tanh", "sort", "relu_"} == found


def test_training_has_no_dead_code_and_a_metric_that_nobody_reads_is_some(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.BatchNorm1d(SIZE), torch.nn.Linear(SIZE, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def step(*, metric: bool) -> None:
        x = torch.rand(SIZE, SIZE)
        out = model(x)
        if metric:
            torch.cumsum(out.detach(), 0)
        optimizer.zero_grad()
        out.pow(2).mean().backward()
        optimizer.step()

    step(metric=True)
    assert dead(lambda: step(metric=False), tmp_path) == set()
    assert dead(lambda: step(metric=True), tmp_path) <= {"cumsum"}


def test_nothing_is_said_where_tensors_are_read_unseen(tmp_path: Path) -> None:
    from whystall.run_folder.layout import READ_SCOPE

    def step() -> None:
        torch.rand(SIZE, SIZE).tanh()
        pickle.dumps(torch.rand(SIZE, SIZE).tanh())
        torch.autograd._record_function_with_args_exit(torch.autograd._record_function_with_args_enter(READ_SCOPE))

    assert dead(step, tmp_path) == set()


# --- random programs -----------------------------------------------------------------------------------------------

SLOTS = 5
Step = tuple[str, int, int, int]
Kinds = dict[str, Callable[..., Any]]
MAKES: Kinds = {
    "mm": lambda a, b: a @ b,
    "maximum": torch.maximum,
    "tanh": lambda a, _: torch.tanh(a),
    "clone": lambda a, _: a.clone(),
}
WRITES: Kinds = {
    "add_": lambda a, b: a.add_(b) if a.data_ptr() != b.data_ptr() else a,
    "mul_": lambda a, b: a.mul_(b) if a.data_ptr() != b.data_ptr() else a,
    "sub_": lambda a, b: (a[2:5].sub_(b[2:5]), a)[1] if a.data_ptr() != b.data_ptr() else a,
}
READS: Kinds = {
    "item": lambda a: a.sum().item(),
    "numpy": lambda a: a.numpy().tobytes(),
    "tolist": lambda a: a[0].tolist(),
    "row": lambda a: a[1].clone().tolist(),
}
INSTRUCTION = st.tuples(
    st.sampled_from([*MAKES, *MAKES, *WRITES, *READS, "t", "forget", "keep", "state"]),
    *[st.integers(0, SLOTS - 1)] * 3,
)


class Program:
    """Instructions on some slots; what Python gets to see of them is in ``seen``.

    ``spoilt`` are the numbers of calls whose result is overwritten at once with other numbers.
    """

    def __init__(self, instructions: list[Step], spoilt: frozenset[int] = frozenset()) -> None:
        self.instructions = instructions
        self.spoilt = spoilt
        self.names: list[str] = []
        self.seen: list[object] = []
        self.state = torch.zeros(SIZE, SIZE)
        self.kept: list[Any] = []
        self.source = torch.Generator().manual_seed(1)

    def step(self) -> None:
        slots = [torch.rand(SIZE, SIZE, generator=self.source) for _ in range(SLOTS)]
        for what, a, b, to in self.instructions:
            if what in READS:
                self.seen.append(READS[what](slots[a]))
            elif what == "keep":
                self.kept.append(slots[a])
            elif what == "state":
                self.state.add_(slots[a])
            elif what in WRITES:
                self._called(what, WRITES[what](slots[a], slots[b]), slots[a] is not slots[b])
            elif what in MAKES:
                slots[to] = self._called(what, MAKES[what](slots[a], slots[b]), True)
            else:
                slots[to] = slots[a].t() if what == "t" else torch.zeros(SIZE, SIZE)

    def _called(self, name: str, result: Any, is_one: bool) -> Any:
        if is_one:
            if len(self.names) in self.spoilt:
                spoil(result)
            self.names.append(name)
        return result

    def all_seen(self) -> list[object]:
        """What Python saw, and what is left."""
        return [*self.seen, self.state.tolist(), *(one.tolist() for one in self.kept)]


def spoil(tensor: Any) -> None:
    """Writes other numbers into a tensor's memory, as no operator does."""
    ctypes.memset(tensor.untyped_storage().data_ptr(), 0x41, SIZE * SIZE * 4)


@settings(max_examples=60, deadline=None)
@given(st.lists(INSTRUCTION, min_size=4, max_size=24))
def test_what_is_called_dead_can_be_spoilt(instructions: list[Step]) -> None:
    program = Program(instructions)
    with TemporaryDirectory() as folder:
        chosen = chosen_calls(observed(program.step, Path(folder), steps=4))
    asked = [
        place for place, call in enumerate(chosen.calls) if call.node.name.removeprefix("aten::") in {*MAKES, *WRITES}
    ]
    names = [chosen.calls[place].node.name.removeprefix("aten::") for place in asked]
    if names == program.names:  # else a read, or the state, makes such calls, too
        found = frozenset(asked.index(place) for place in unread(chosen) if place in asked)
        spoilt = Program(instructions, found)
        for _ in range(4):
            spoilt.step()
        assert spoilt.all_seen() == program.all_seen()
