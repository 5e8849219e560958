"""What to do about many small operators, in recordings of torch's own: by what they are the work of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import told_in

torch = pytest.importorskip("torch")
WIDE = 24


def cells() -> Callable[[], object]:
    """torch's own cell, over the times of a sequence."""
    cell, given = torch.nn.LSTMCell(WIDE, WIDE), torch.randn(60, 4, WIDE)

    def step() -> None:
        state = None
        for now in given:
            state = cell(now, state)
        state[0].sum().backward()  # type: ignore[index]

    return step


def gates() -> Callable[[], object]:
    """A cell that is written by hand."""
    inside, outside, given = torch.nn.Linear(WIDE, 2 * WIDE), torch.nn.Linear(WIDE, 2 * WIDE), torch.randn(60, 4, WIDE)

    def step() -> None:
        state = torch.zeros(4, WIDE)
        for now in given:
            keep, new = (inside(now) + outside(state)).chunk(2, -1)
            keep = torch.sigmoid(keep)
            state = keep * state + (1 - keep) * torch.tanh(new)
        state.sum().backward()

    return step


def tasks() -> Callable[[], object]:
    """A small step of each task for itself."""
    weight, given = torch.randn(WIDE, WIDE, requires_grad=True), torch.randn(20, 4, WIDE)

    def step() -> None:
        for one in given:
            for _ in range(2):
                hidden = one
                for _ in range(6):
                    hidden = torch.relu(hidden @ weight)
                torch.autograd.grad(hidden.square().mean(), weight)

    return step


def elements() -> Callable[[], object]:
    """A table of numbers that is gone through one by one."""
    given = torch.randn(8, 60)

    def step() -> None:
        with torch.no_grad():
            for row in range(8):
                last = 0.0
                for at in range(60):
                    last = float(given[row, at]) + 0.9 * last

    return step


def layers() -> Callable[[], object]:
    """A deep and narrow network: none of these."""
    net = torch.nn.Sequential(*(layer for _ in range(60) for layer in (torch.nn.Linear(WIDE, WIDE), torch.nn.ReLU())))
    given = torch.randn(4, WIDE)

    def step() -> None:
        net(given).sum().backward()

    return step


@pytest.mark.parametrize(
    ("job", "in_patch"),
    [
        (cells, "gates = self.inputs(x)"),
        (gates, "gates = self.inputs(x)"),
        (tasks, "torch.func.vmap"),
        (elements, "all rows at once"),
        (layers, "torch.stack(items)"),
    ],
)
def test_the_remedy_is_the_one_for_this_loop(
    job: Callable[[], Callable[[], object]], in_patch: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    remedy = told_in(job(), tmp_path, lambda found: found.get("host.small-operators"), steps=4).remedy
    assert remedy is not None
    assert in_patch in (remedy.patch or "")
