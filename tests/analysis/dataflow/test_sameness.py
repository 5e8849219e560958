"""Which calls compute what was there before, held against the bytes that random programs really compute."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.analysis.dataflow.chosen_calls import ChosenCalls, chosen_calls
from whystall.analysis.dataflow.sameness import ComputedAgain, computed_again
from whystall.run_folder.layout import HELD_SCOPE, STEP_SCOPE
from whystall.trace.readers.execution_trace import ExecutionTrace, Tensor, Value, read_execution_trace

torch: Any = pytest.importorskip("torch")
SIZE = 16
STEPS = 2


def observed(step: Callable[[], object], folder: Path, held: Iterable[Any] = (), steps: int = STEPS) -> ExecutionTrace:
    """The execution trace of some steps, in the form in which a job's values are recorded."""

    def scope(name: str, tensors: Iterable[Any]) -> None:
        mark = torch.autograd._record_function_with_args_enter(name)
        for one in tensors:
            one.detach()
        torch.autograd._record_function_with_args_exit(mark)

    path = folder / "trace.json"
    observer = torch._C._profiler
    observer._add_execution_trace_observer(str(path))
    observer._enable_execution_trace_observer()
    try:
        scope(HELD_SCOPE, held)
        for number in range(steps):
            if number:
                scope(STEP_SCOPE, ())
            step()
        scope(HELD_SCOPE, held)
    finally:
        observer._disable_execution_trace_observer()
        observer._remove_execution_trace_observer()
    return read_execution_trace(path)


def again(step: Callable[[], object], folder: Path, held: Iterable[Any] = ()) -> list[tuple[int, str, bool]]:
    """Step, operator, and whether its results were there in the same step, of each call that is computed again."""
    chosen = chosen_calls(observed(step, folder, held))
    return [(chosen.calls[one.call].step, name_of(chosen, one), one.within_step) for one in computed_again(chosen)]


def name_of(chosen: ChosenCalls, one: ComputedAgain) -> str:
    return chosen.calls[one.call].node.name.removeprefix("aten::")


def batch() -> Any:
    """Memory that no operator fills, which may lie where the batch before it lay."""
    return torch.from_numpy(np.random.default_rng().standard_normal((SIZE, SIZE), dtype=np.float32))


def test_a_constant_is_computed_in_each_step_and_a_batch_is_new(tmp_path: Path) -> None:
    constant, weight = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)

    def step() -> None:
        table = (constant @ weight).tanh()
        (batch() @ weight).relu() + table

    assert again(step, tmp_path, [constant, weight]) == [(1, "mm", False), (1, "tanh", False)]
    assert again(step, tmp_path, [weight]) == []  # nobody knows whether it is the same memory
    assert again(step, tmp_path) == []


def test_a_projection_computed_twice_in_a_step_is_a_common_subexpression(tmp_path: Path) -> None:
    weight = torch.randn(SIZE, SIZE, requires_grad=True)

    def step() -> None:
        x = torch.randn(SIZE, SIZE)
        ((x @ weight).relu() * (x @ weight).sigmoid()).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None

    assert again(step, tmp_path, [weight]) == [(0, "mm", True), (1, "mm", True)]


def test_work_that_is_learned_from_is_never_of_an_earlier_step(tmp_path: Path) -> None:
    constant, weight = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE, requires_grad=True)

    def step() -> None:
        (constant @ weight).mul(batch()).sum().backward()
        with torch.no_grad():
            constant @ weight

    found = again(step, tmp_path, [constant, weight])
    assert found == [(0, "mm", True), (1, "mm", True)]


def test_a_model_that_is_measured_on_one_batch_computes_nothing_in_vain(tmp_path: Path) -> None:
    constant, weight = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    assert again(lambda: torch.relu(constant @ weight), tmp_path, [constant, weight]) == []


def test_chance_is_never_the_same(tmp_path: Path) -> None:
    constant = torch.ones(SIZE, SIZE)

    def step() -> None:
        for _ in range(2):
            torch.rand(SIZE, SIZE).exp()
            torch.nn.functional.dropout(constant, 0.5).exp()
            torch.bernoulli(constant / 2).exp()
            torch.randperm(SIZE).exp()

    assert {name for _, name, _ in again(step, tmp_path, [constant])} == set()
    evaluates = torch.nn.Dropout().eval()

    def draws_nothing() -> None:
        batch()[0].exp()
        for _ in range(2):
            evaluates(constant).exp()

    assert [name for _, name, within in again(draws_nothing, tmp_path, [constant]) if within] == ["exp"] * STEPS
    attention = torch.randn(1, 2, SIZE, SIZE)

    def attends() -> None:
        batch()[0].exp()
        for chance in (0.0, 0.5):
            for _ in range(2):
                torch.nn.functional.scaled_dot_product_attention(attention, attention, attention, dropout_p=chance)

    found = [name for step, name, within in again(attends, tmp_path, [attention]) if "attention" in name and within]
    assert len(found) == STEPS


def test_running_statistics_change_in_training(tmp_path: Path) -> None:
    norm, constant = torch.nn.BatchNorm1d(SIZE), torch.randn(SIZE, SIZE)
    held = [*norm.parameters(), *norm.buffers(), constant]

    def step() -> None:
        batch().exp()
        norm(constant)
        norm.running_mean.exp()

    assert not [
        name for _, name, _ in again(step, tmp_path, held) if name in ("native_batch_norm", "batch_norm", "exp")
    ]
    with torch.no_grad():
        norm.eval()
        assert [name for _, name, _ in again(step, tmp_path, held) if name == "exp"] == ["exp"]


def test_a_batch_of_a_loaders_process_is_the_same_within_its_step_alone(tmp_path: Path) -> None:
    weight = torch.randn(SIZE, SIZE)
    loader = torch.utils.data.DataLoader(torch.arange(12 * SIZE).view(-1, SIZE).float(), SIZE // 4, num_workers=1)
    batches = iter(loader)
    next(batches)

    def step() -> None:
        x = next(batches)
        (x @ weight).relu() + (x @ weight).tanh()

    assert again(step, tmp_path, [weight]) == [(0, "mm", True), (1, "mm", True)]


def test_memory_that_is_written_to_afterwards_is_needed_anew(tmp_path: Path) -> None:
    def step() -> None:
        for _ in range(2):
            total = torch.zeros(SIZE, SIZE)
            total.add_(batch())
            torch.arange(SIZE).exp().cumsum(0)

    names = {name for _, name, within in again(step, tmp_path) if within}
    assert names == {"arange", "exp", "cumsum"}


def test_an_empty_tensor_that_no_operator_fills_is_unknown(tmp_path: Path) -> None:
    def step() -> None:
        batch().exp()
        for _ in range(2):
            memory = torch.empty(SIZE, SIZE)
            memory.numpy()[:] = np.random.default_rng().standard_normal((SIZE, SIZE))
            memory.exp()

    assert again(step, tmp_path) == []


def test_a_recomputation_of_checkpointing_is_none_of_these(tmp_path: Path) -> None:
    weight = torch.randn(SIZE, SIZE, requires_grad=True)

    def step() -> None:
        x = torch.randn(SIZE, SIZE)
        torch.utils.checkpoint.checkpoint(lambda y: (y @ weight).exp(), x, use_reentrant=False).sum().backward()
        weight.grad = None

    assert [name for _, name, _ in again(step, tmp_path, [weight]) if name in ("mm", "exp")] == []


def test_memory_of_a_device_is_written_by_calls_alone(tmp_path: Path) -> None:
    constant, weight = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    execution = observed(lambda: torch.rand(SIZE, SIZE) + (constant @ weight), tmp_path)
    assert computed_again(chosen_calls(execution)) == []

    def moved(value: Value) -> Value:
        return replace(value, device="cuda:0") if isinstance(value, Tensor) else value

    nodes = [
        replace(node, given=tuple(map(moved, node.given)), returned=tuple(map(moved, node.returned)))
        for node in execution.nodes
    ]
    chosen = chosen_calls(ExecutionTrace(nodes))
    assert [name_of(chosen, one) for one in computed_again(chosen)] == ["mm"]


# --- random programs -----------------------------------------------------------------------------------------------

Kinds = dict[str, Callable[..., Any]]
NUMBERS = itertools.count(2)
"""Numbers in expressions: another one each time."""
BINARY: Kinds = {"mm": torch.mm, "add": torch.add, "mul": torch.mul, "maximum": torch.maximum}
UNARY: Kinds = {
    "tanh": torch.tanh,
    "cumsum": lambda a: a.cumsum(0),
    "sigmoid": torch.sigmoid,
    "div": lambda a: a / next(NUMBERS),
}
WRITES: Kinds = {
    "add_": lambda a, b: a.add_(b),
    "mul_": lambda a, _: a.mul_(0.5),
    "copy_": lambda a, b: a.copy_(b),
    "sub_": lambda a, b: (a[2:5].sub_(b[2:5]), a)[1],
}
MAKES: Kinds = {
    "arange": lambda: torch.arange(SIZE * SIZE).view(SIZE, SIZE).float(),
    "rand": lambda: torch.rand(SIZE, SIZE),
}
SLOTS = 6
CONSTANTS = 2
INSTRUCTION = st.tuples(
    st.sampled_from([*BINARY, *BINARY, *UNARY, *WRITES, *MAKES, "t", "refill", "outside"]),
    *[st.integers(0, SLOTS - 1)] * 3,
)
Instruction = tuple[str, int, int, int]
ASKED = {*BINARY, *UNARY, *WRITES, "rand"}


def bytes_of(tensor: Any) -> bytes:
    """The bytes of its memory, read as no operator is called for."""
    return bytes(tensor.stride()) + ctypes.string_at(tensor.data_ptr(), SIZE * SIZE * 4)


class Program:
    """Instructions on some slots, run once in each step; ``results`` are the bytes that each asked call gave."""

    def __init__(self, instructions: list[Instruction]) -> None:
        self.instructions = instructions
        self.constants = [torch.randn(SIZE, SIZE) for _ in range(CONSTANTS)]
        self.results: list[tuple[str, bytes]] = []

    def step(self) -> None:
        slots = [*self.constants, *(batch() for _ in range(SLOTS - CONSTANTS))]
        filled = set(range(CONSTANTS, SLOTS))
        """Slots whose memory numpy has."""
        for what, a, b, place in self.instructions:
            to = max(place, CONSTANTS)
            if what == "outside":
                if a in filled:
                    slots[a].numpy()[:] = np.random.default_rng().standard_normal((SIZE, SIZE))
                continue
            if what in WRITES and slots[a].data_ptr() == slots[b].data_ptr():
                continue
            shown = called(what, slots[a], slots[b])
            if what not in WRITES:
                slots[to] = shown
                filled = (filled - {to}) | ({to} if what == "refill" else set())
            if what in ASKED:
                self.results.append((what, bytes_of(shown)))


def called(what: str, a: Any, b: Any) -> Any:
    """The results of an instruction."""
    for kinds, operands in ((BINARY, (a, b)), (WRITES, (a, b)), (UNARY, (a,)), (MAKES, ())):
        if what in kinds:
            return kinds[what](*operands)
    return a.t() if what == "t" else batch()


@settings(max_examples=60, deadline=None)
@given(st.lists(INSTRUCTION, min_size=4, max_size=30))
def test_what_is_called_the_same_is_the_same(instructions: list[Instruction]) -> None:
    program = Program(instructions)
    with TemporaryDirectory() as folder:
        chosen = chosen_calls(observed(program.step, Path(folder), program.constants))
    asked = [
        place
        for place, call in enumerate(chosen.calls)
        if call.node.name.removeprefix("aten::") in ASKED and call.node.given
    ]
    # Calls that an operator makes by itself (a copy within `contiguous`) are inside it.
    assert [chosen.calls[place].node.name.removeprefix("aten::") for place in asked] == [
        name for name, _ in program.results
    ]
    number = {place: at for at, place in enumerate(asked)}
    for one in computed_again(chosen):
        if one.call in number:
            assert program.results[number[one.call]] == program.results[number[one.first]]


PURE = st.tuples(st.sampled_from([*BINARY, *UNARY, "t"]), *[st.integers(0, SLOTS - 1)] * 3)


@settings(max_examples=60, deadline=None)
@given(st.lists(PURE, min_size=2, max_size=20))
def test_all_that_is_the_same_is_found_where_nothing_is_written(instructions: list[Instruction]) -> None:
    program = Program(instructions)
    with TemporaryDirectory() as folder:
        chosen = chosen_calls(observed(program.step, Path(folder), program.constants))
    found = {one.call for one in computed_again(chosen) if one.within_step and chosen.calls[one.call].step == 0}
    asked = [at for at, call in enumerate(chosen.calls) if call.node.name.removeprefix("aten::") in ASKED]
    terms: list[object] = [f"constant {slot}" if slot < CONSTANTS else None for slot in range(SLOTS)]
    expected, seen, at = set(), set(), 0
    for what, a, b, place in instructions:
        to = max(place, CONSTANTS)
        if what == "t":
            one = terms[a]
            turned = isinstance(one, tuple) and one[0] == "t"
            terms[to] = one[1] if isinstance(one, tuple) and turned else one if one is None else ("t", one)
            continue
        operands = [terms[a]] if what in UNARY else [terms[a], terms[b]]
        # Each read of a batch may find another one.
        term = (what, *(object() if one is None else one for one in operands))
        term = (*term, object()) if what == "div" else term
        if term in seen:
            expected.add(asked[at])
        seen.add(term)
        at += 1
        terms[to] = term
    assert found == expected
