"""Loops over recurrent cells, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from tests.diagnosis.detectors.recordings import recorded

import whystall
from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.detectors.loops_over_time import LoopsOverTime, loops_over_time
from whystall.diagnosis.rank_case import RankCase

torch = pytest.importorskip("torch")
PLACES: Final = 20
BATCH, INPUTS, HIDDEN = 8, 24, 40


def loops_in(step: Callable[[], object], folder: Path) -> tuple[RankCase, LoopsOverTime | None]:
    recorded(step, 2).export_chrome_trace(str(folder / "trace.json"))
    trace = whystall.load(folder / "trace.json")
    rank = RankCase(0, trace, analyze_trace(trace, rank=0))
    return rank, loops_over_time(rank, fewest=8)


def names_of(rank: RankCase, chosen: np.ndarray) -> list[str]:
    return rank.trace.operators["name"].cast(str).filter(chosen).to_list()


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_inputs_and_gradients_of_weights_are_the_same_for_all_places(kind: type, tmp_path: Path) -> None:
    cell = kind(INPUTS, HIDDEN)
    sequence = torch.randn(PLACES, BATCH, INPUTS)

    def step() -> None:
        state, out = None, []
        for place in range(PLACES):
            state = cell(sequence[place], state)
            out.append(state[0] if isinstance(state, tuple) else state)
        torch.stack(out).square().mean().backward()
        cell.zero_grad(set_to_none=True)

    rank, found = loops_in(step, tmp_path)
    assert found is not None
    assert (found.cells, found.loops) == (2 * PLACES, 2)
    joined = names_of(rank, found.joined)
    # Forward, the product of each input; backward, that of each place and weight, the state's of the first place too.
    products = sum(name in {"aten::mm", "aten::addmm"} for name in joined)
    assert products == 2 * (PLACES + 2 * PLACES)
    # Two weights and two biases have a gradient each, which is summed over the places.
    assert len(names_of(rank, found.gone)) == 2 * (PLACES - 1) * 4
    assert set(names_of(rank, found.gone)) <= {"aten::add", "aten::add_"}


def test_cells_whose_next_input_follows_from_the_last_result_are_no_loop(tmp_path: Path) -> None:
    """A decoder: attention over what was read decides the next input."""
    cell = torch.nn.LSTMCell(INPUTS, HIDDEN)
    memory, query = torch.randn(BATCH, 10, INPUTS), torch.nn.Linear(HIDDEN, INPUTS)

    def step() -> None:
        given, state = torch.zeros(BATCH, INPUTS), None
        for _ in range(PLACES):
            state = cell(given, state)
            weights = torch.einsum("bi,bti->bt", query(state[0]), memory).softmax(-1)
            given = torch.einsum("bt,bti->bi", weights, memory)
        state[0].square().mean().backward()  # type: ignore[index]

    assert loops_in(step, tmp_path)[1] is None


def test_a_layer_for_the_whole_sequence_is_none(tmp_path: Path) -> None:
    layer, sequence = torch.nn.LSTM(INPUTS, HIDDEN), torch.randn(PLACES, BATCH, INPUTS)
    assert loops_in(lambda: layer(sequence)[0].square().mean().backward(), tmp_path)[1] is None


def test_networks_of_equal_sizes_are_no_places_of_a_sequence(tmp_path: Path) -> None:
    cells = torch.nn.ModuleList(torch.nn.LSTMCell(INPUTS, HIDDEN) for _ in range(12))
    given = torch.randn(12, BATCH, INPUTS)
    states = [(torch.zeros(BATCH, HIDDEN), torch.zeros(BATCH, HIDDEN)) for _ in cells]

    def step() -> None:
        out = [cell(given[at], states[at])[0] for at, cell in enumerate(cells)]
        torch.stack(out).square().mean().backward()
        cells.zero_grad(set_to_none=True)

    assert loops_in(step, tmp_path)[1] is None
