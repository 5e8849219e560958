"""Rows alike within one call: repeated on purpose they are told; alike by chance, padded or random are not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capture.test_repeats import seen

from whystall.capture.alike import AlikeRows, _again
from whystall.capture.repeats import RepeatsSeen

torch = pytest.importorskip("torch")
steps_that_take_no_time = pytest.mark.usefixtures("steps_that_take_no_time")


def share(module: Any, *given: Any, constant: bool = False) -> float:
    torch.manual_seed(0)
    with torch.no_grad():
        return AlikeRows(torch).share(1, given, module(*given), constant=constant)


def normal(*sizes: int) -> Any:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(1))


LINEAR = torch.nn.Linear(16, 8)
ENCODER = torch.nn.LSTM(16, 8, batch_first=True)


@pytest.mark.parametrize(
    ("module", "given", "of"),
    [
        pytest.param(LINEAR, normal(6, 16).repeat_interleave(5, 0), 0.8, id="each row five times in a row"),
        pytest.param(LINEAR, normal(6, 16).repeat(5, 1), 0.8, id="all rows five times"),
        pytest.param(LINEAR, normal(1, 16).expand(40, 16), 1 - 1 / 40, id="one row for all"),
        pytest.param(
            LINEAR,
            normal(4, 16).repeat_interleave(torch.tensor([1, 7, 3, 9]), 0),
            0.8,
            id="a user's row for each candidate, of whom some have more",
        ),
        pytest.param(LINEAR, normal(6, 1, 16).expand(6, 10, 16), 0.9, id="a vector beside each of many"),
        pytest.param(
            ENCODER, normal(3, 12, 16).repeat_interleave(4, 0), 0.75, id="a series for each path drawn from it"
        ),
        pytest.param(torch.nn.Embedding(50, 8), torch.arange(24).expand(30, 24), 1 - 1 / 30, id="places in a sequence"),
    ],
)
def test_rows_that_are_repeated_on_purpose_are_seen(module: Any, given: Any, of: float) -> None:
    assert share(module, given) == pytest.approx(of)


@pytest.mark.parametrize(
    ("module", "given"),
    [
        pytest.param(LINEAR, normal(64, 16), id="rows that differ"),
        pytest.param(LINEAR, normal(5, 16)[torch.randint(5, (64,))], id="few rows in a random order"),
        pytest.param(LINEAR, normal(6, 16).repeat_interleave(5, 0)[:, :1].expand(30, 16), id="rows of one number"),
        pytest.param(LINEAR, torch.zeros(30, 16), id="nothing"),
        pytest.param(torch.nn.Dropout(), normal(6, 16).repeat(5, 1), id="chance"),
        pytest.param(ENCODER, normal(3, 1, 16).expand(3, 12, 16), id="one number for all places, whose order counts"),
        pytest.param(
            LINEAR, torch.cat([normal(6, 4, 16), normal(1, 1, 16).expand(6, 9, 16)], 1), id="padded with a token"
        ),
        pytest.param(LINEAR, normal(40, 16).to(torch.complex64).real[:1], id="one row"),
    ],
)
def test_other_rows_are_not(module: Any, given: Any) -> None:
    assert share(module, given) == 0


def test_few_rows_in_any_order_count_where_they_are_the_same_in_each_step() -> None:
    table = normal(9, 16)[torch.randint(9, (64,), generator=torch.Generator().manual_seed(2))]
    assert share(LINEAR, table, constant=True) == pytest.approx(1 - len(table.unique(dim=0)) / 64)


def test_a_pair_whose_other_half_differs_is_none_and_its_query_is_one() -> None:
    query, items = normal(1, 16).expand(50, 16), normal(50, 16)
    assert share(torch.nn.Bilinear(16, 16, 4), query, items) == 0


def test_a_module_whose_rows_differ_is_not_asked_for_long_and_other_shapes_of_its_are() -> None:
    alike = AlikeRows(torch)
    for _ in range(3):
        alike.share(1, (normal(64, 16),), normal(64, 8), constant=False)
    twice = normal(32, 16).repeat(2, 1)
    assert alike.share(1, (twice,), LINEAR(twice), constant=False) == 0
    again = normal(20, 16).repeat(2, 1)
    assert alike.share(1, (again,), LINEAR(again), constant=False) == pytest.approx(0.5)


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(2, 5))
def test_what_is_repeated_is_there_before_whatever_it_is(rows: list[int], times: int) -> None:
    different = list(dict.fromkeys(rows))
    expected = len(different) * (times - 1)
    for order in ([row for row in different for _ in range(times)], different * times):
        again = _again(order, constant=False, samples=True)
        assert len(again) == expected
        assert all(order[at] == order[first] for at, first in again.items())


class Forecaster(torch.nn.Module):  # type: ignore[name-defined]
    """Encodes a series, and draws paths from what it gives."""

    def __init__(self, *, repeats_first: bool) -> None:
        super().__init__()
        self.encoder, self.head = torch.nn.GRU(16, 64, batch_first=True), torch.nn.Linear(64, 1)
        self.repeats_first = repeats_first

    def forward(self, series: Any) -> Any:
        if self.repeats_first:
            return self.head(self.encoder(series.repeat_interleave(32, 0))[0][:, -1])
        return self.head(self.encoder(series)[0][:, -1].repeat_interleave(32, 0))


@steps_that_take_no_time
@pytest.mark.parametrize("learns", [False, True])
def test_a_series_that_is_encoded_for_each_path_is_told_with_its_line(*, learns: bool) -> None:
    model = Forecaster(repeats_first=True).train(learns)

    def step() -> None:
        with torch.set_grad_enabled(learns):
            out = model(torch.randn(4, 40, 16)).sum()
        if learns:
            out.backward()

    alike = seen(step, steps=40).alike
    assert alike is not None
    part = alike.modules[0]  # its head may be told of as well, where it takes a hundredth of the step
    assert (part.name, part.function) == ("GRU", "forward")
    assert "series.repeat_interleave(32, 0)" in part.text
    assert 0.5 < alike.again_ns / alike.measured_ns < 1 or learns
    assert alike.differentiated_ns == (alike.again_ns if learns else 0)
    assert alike.calls >= alike.steps


@steps_that_take_no_time
def test_the_call_that_begins_a_step_is_looked_at_as_well() -> None:
    """A request's first pass ends the step before it, once it is called: the longest of all, where tokens follow."""
    model = Forecaster(repeats_first=True).eval()
    repeats, began = RepeatsSeen(torch, lambda: True), time.perf_counter_ns()

    def begins(*_: object) -> None:
        nonlocal began
        if not repeats.over:
            repeats.step_ended(time.perf_counter_ns() - began, in_call=True)
        began = time.perf_counter_ns()

    model.encoder.register_forward_pre_hook(begins)
    with torch.no_grad():
        for _ in range(40):
            model.head(model.encoder(torch.randn(4, 40, 16).repeat_interleave(32, 0))[0])
    repeats.close()
    assert repeats.alike is not None
    assert repeats.alike.modules[0].name == "GRU"
    assert repeats.alike.calls >= repeats.alike.steps


@steps_that_take_no_time
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda model: model(torch.randn(4, 40, 16)), id="encoded once"),
        pytest.param(lambda model: model.encoder(torch.randn(128, 40, 16)), id="series that differ"),
    ],
)
def test_a_series_that_is_encoded_once_is_not(step: Callable[[Any], object]) -> None:
    model = Forecaster(repeats_first=False).eval()
    model.head = torch.nn.Identity()
    with torch.no_grad():
        assert seen(lambda: step(model), steps=40).alike is None
