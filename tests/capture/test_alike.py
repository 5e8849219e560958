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
from whystall.capture.sums import rows_of, sum_of

torch = pytest.importorskip("torch")
steps_that_take_no_time = pytest.mark.usefixtures("steps_that_take_no_time")


def share(module: Any, *given: Any, constant: bool = False) -> float:
    torch.manual_seed(0)
    with torch.no_grad():
        return AlikeRows(torch).share(module, given, module(*given), constant=constant)


def normal(*sizes: int) -> Any:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(1))


LINEAR = torch.nn.Linear(16, 8).eval()
ENCODER = torch.nn.LSTM(16, 8, batch_first=True)


class Lambda(torch.nn.Module):  # type: ignore[name-defined]
    """A module of the user's own, which does what a function does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def flipped(images: Any) -> Any:
    return torch.stack([image.flip(-1) if at % 2 else image for at, image in enumerate(images)])


def attends(places: Any) -> Any:
    return (places @ places.mT).softmax(-1) @ places


UNEVEN = torch.tensor([1, 7, 3, 9])


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
        pytest.param(
            LINEAR,
            normal(4, 16)[torch.tensor([0, 1, 2, 0, 3])].repeat_interleave(5, 0),
            0.84,
            id="one user twice in a batch",
        ),
        pytest.param(
            LINEAR, normal(6, 1, 3, 16).expand(6, 5, 3, 16), 0.8, id="a series for each of a few, in a new place"
        ),
        pytest.param(
            Lambda(attends), normal(2, 5, 16).repeat_interleave(3, 1), 2 / 3, id="places that see each other, evenly"
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
        pytest.param(LINEAR, normal(1, 16), id="one row"),
        pytest.param(
            Lambda(flipped), normal(3, 2, 8, 8).repeat_interleave(2, 0), id="pictures turned around by chance"
        ),
        pytest.param(
            Lambda(lambda x: x + 1e-3 * torch.randn_like(x)),
            normal(3, 4096).repeat_interleave(4, 0),
            id="a little noise",
        ),
        pytest.param(
            Lambda(lambda x: torch.nn.functional.gumbel_softmax(x, hard=True)),
            normal(3, 16).repeat(9, 1),
            id="drawn from",
        ),
        pytest.param(
            Lambda(lambda x: torch.ones(len(x), 4) / 4 + 0 * x[:, :4]),
            normal(3, 16).repeat(9, 1),
            id="the same for all",
        ),
        pytest.param(
            Lambda(attends), normal(2, 4, 16).repeat_interleave(UNEVEN, 1), id="places that see each other, unevenly"
        ),
        pytest.param(
            torch.nn.BatchNorm1d(16), normal(4, 16).repeat_interleave(UNEVEN, 0), id="statistics over an uneven batch"
        ),
        pytest.param(LINEAR, torch.cat([normal(30, 16), normal(1, 16).expand(70, 16)]), id="boxes that are padded"),
        pytest.param(LINEAR, torch.cat([normal(3, 16), torch.zeros(13, 16)]), id="rows of nothing"),
        pytest.param(torch.nn.Embedding(9, 8), torch.full((16, 12), 3), id="one token everywhere"),
        *(
            pytest.param(torch.nn.Identity(), normal(*size), id=f"a size that is not read, {size}")
            for size in ((64, 3, 384, 384), (32, 24, 1), (1, 1, 16), (1, 1, 5000), (4, 3, 0))
        ),
        pytest.param(Lambda(lambda x: x.to_sparse()), normal(3, 16).repeat(9, 1), id="what comes out is sparse"),
        pytest.param(Lambda(lambda x: x.long()), normal(3, 16).repeat(9, 1), id="whole numbers come out"),
    ],
)
def test_other_rows_are_not(module: Any, given: Any) -> None:
    assert share(module, given) == 0


def test_few_rows_in_any_order_count_where_they_are_the_same_in_each_step() -> None:
    table = normal(9, 16)[torch.randint(9, (64,), generator=torch.Generator().manual_seed(2))]
    assert share(LINEAR, table, constant=True) == pytest.approx(1 - len(table.unique(dim=0)) / 64)


@pytest.mark.parametrize("give", [lambda u, i: u @ i.T, lambda u, i: (u, i), lambda u, i: {"user": u, "item": i}])
def test_of_pairs_whose_other_half_differs_nothing_is_alike(give: Callable[[Any, Any], Any]) -> None:
    query, items = normal(1, 16).expand(50, 16), normal(50, 16)
    assert share(Lambda(give), query, items) == 0
    assert share(LINEAR, query) == pytest.approx(0.98)


def test_what_all_rows_are_given_together_does_not_part_them() -> None:
    assert share(Lambda(lambda x, w: x @ w), normal(4, 16).repeat(5, 1), normal(16, 3)) == pytest.approx(0.8)


def test_a_mask_of_ones_makes_no_rows_alike() -> None:
    ids = torch.randint(1000, (32, 12), generator=torch.Generator().manual_seed(3))
    words = torch.nn.Embedding(1000, 8)
    assert (
        share(Lambda(lambda ids, mask: (words(ids) * mask[..., None]).mean(1).softmax(-1)), ids, torch.ones(32, 12))
        == 0
    )
    assert share(Lambda(lambda ids, mask: words(ids).mean(1)), ids, torch.ones(32, 1, 1, 12, dtype=torch.bool)) == 0


def test_one_module_asked_in_turn_for_rows_that_are_alike_and_for_others_is_asked_on() -> None:
    alike = AlikeRows(torch)
    for _ in range(5):
        for rows, of in ((normal(1, 16).expand(64, 16), 63 / 64), (normal(64, 16), 0)):
            assert alike.share(LINEAR, (rows,), LINEAR(rows), constant=False) == pytest.approx(of)


def test_what_is_read_stays_as_it_was() -> None:
    """Nor can a storage be resized any more of which numpy() was asked."""
    for rows in (normal(3, 16).repeat(9, 1), normal(64, 16)):
        before, state, version = rows.clone(), torch.get_rng_state(), rows._version
        assert sum_of(torch, rows) is not None
        assert rows_of(torch, rows)
        AlikeRows(torch).share(LINEAR, (rows,), LINEAR(rows), constant=False)
        assert torch.equal(rows, before)
        assert torch.equal(torch.get_rng_state(), state)
        assert rows._version == version
        assert rows.resize_(128, 16).shape == (128, 16)


def test_within_a_transformation_nothing_is_read() -> None:
    asked: list[float] = []

    def called(row: Any) -> Any:
        asked.append(AlikeRows(torch).share(LINEAR, (row,), row, constant=False))
        assert sum_of(torch, row) is None
        return LINEAR(row)

    torch.func.vmap(called)(normal(4, 6, 16))
    assert asked == [0]


def test_a_failure_of_its_own_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.alike._rows", lambda *_: 1 / 0)
    assert share(LINEAR, normal(6, 16).repeat(5, 1)) == 0


def test_a_module_whose_rows_differ_is_not_asked_for_long_and_other_shapes_of_its_are() -> None:
    alike = AlikeRows(torch)
    for _ in range(3):
        alike.share(LINEAR, (normal(64, 16),), normal(64, 8), constant=False)
    twice = normal(32, 16).repeat(2, 1)
    assert alike.share(LINEAR, (twice,), LINEAR(twice), constant=False) == 0
    again = normal(20, 16).repeat(2, 1)
    assert alike.share(LINEAR, (again,), LINEAR(again), constant=False) == pytest.approx(0.5)


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
    assert 0.2 < alike.again_ns / alike.measured_ns < 1 or learns
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
        found = seen(lambda: step(model), steps=40).alike
    # A head that does nothing is given rows again, which takes next to nothing of a step.
    assert found is None or found.again_ns < 0.02 * found.measured_ns
