"""What memory is said to be for, against what real programs of torch used it for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.memory.program_recorder import Recorder
from tests.memory.test_explain import read
from tests.memory.torch_jobs import OwnAdam, Pictures, Words, forward, train, words

from whystall.memory.allocator_settings import DEFAULT
from whystall.memory.explain import explain
from whystall.memory.lifetimes import allocated_course, lifetimes
from whystall.memory.phases import find_phases
from whystall.memory.purpose import CATEGORIES, Judge
from whystall.memory.results import Category
from whystall.memory.stacks import read_stacks

KNOWN = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE, Category.ACTIVATIONS)
Said = Counter[tuple[Category | None, Category]]


def at_the_peak(folder: Path, recorder: Recorder, **more: Any) -> Said:
    """The bytes at the peak, by what they are for and by what is said of them."""
    snapshot = read(folder, recorder.snapshot(**more))
    (record,) = snapshot.devices
    alive, stacks = lifetimes(record, DEFAULT), read_stacks(snapshot.frames)
    judge = Judge(record, alive, stacks, find_phases(record, stacks))
    row = int(np.argmax(allocated_course(alive, len(record.events))))
    rows = np.flatnonzero(alive.alive_at(row))
    said: Said = Counter()
    for one, category in zip(rows.tolist(), judge.of(rows, row).category.tolist(), strict=True):
        truth = recorder.truth.get(int(record.events.address[alive.begin[one]]))
        said[truth, CATEGORIES[category]] += int(alive.size[one])
    return said


def agrees(said: Said) -> bool:
    """Whether 98 % of what is known is said, of each kind that holds a twentieth of it at least."""
    whole = sum(said.values())
    for kind in KNOWN:
        truth = sum(bytes_ for (one, _), bytes_ in said.items() if one is kind)
        if truth >= 0.05 * whole and said[kind, kind] < 0.98 * truth:
            return False
    return True


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


@pytest.mark.parametrize(
    ("computes_again", "optimizer"),
    [
        (False, adam),
        (False, lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)),
        (False, lambda model: OwnAdam(model.parameters())),
        (True, adam),
    ],
    ids=["adam", "momentum", "own optimizer", "checkpoints"],
)
def test_a_training_job(
    tmp_path: Path,
    computes_again: bool,
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer],
) -> None:
    with Recorder() as recorder:
        model = Words(computes_again=computes_again)
        train(recorder, model, optimizer(model))

    said = at_the_peak(tmp_path, recorder)

    assert agrees(said), said
    assert sum(bytes_ for (_, one), bytes_ in said.items() if one is Category.UNKNOWN) == 0


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("of", ["words", "pictures"])
def test_forward_passes_with_gradients(tmp_path: Path, of: str, times: int) -> None:
    with Recorder() as recorder:
        model = Words() if of == "words" else Pictures()
        out = forward(recorder, model, words() if of == "words" else torch.randn(4, 3, 16, 16), times)
    said = at_the_peak(tmp_path, recorder)

    assert out.requires_grad
    assert said[Category.ACTIVATIONS, Category.ACTIVATIONS] > 0
    assert agrees(said), said


@pytest.mark.parametrize("of", ["words", "pictures"])
def test_forward_passes_without_gradients(tmp_path: Path, of: str) -> None:
    with Recorder() as recorder, torch.no_grad():
        model = Words() if of == "words" else Pictures()
        out = forward(recorder, model, words() if of == "words" else torch.randn(4, 3, 16, 16), 2)
    said = at_the_peak(tmp_path, recorder)

    assert not out.requires_grad
    assert not any(one is Category.ACTIVATIONS for _, one in said), said


def test_a_job_that_runs_out_before_its_first_backward_pass(tmp_path: Path) -> None:
    with Recorder() as recorder:
        model = Words()
        logits = forward(recorder, model, words())
        value = recorder.snapshot(asked=logits.nbytes)
    said = at_the_peak(tmp_path, recorder, asked=logits.nbytes)
    (out,) = explain(read(tmp_path, value)).devices[0].out_of_memory

    assert agrees(said), said
    assert out.held[0].category is Category.ACTIVATIONS
    assert out.rescues[0].remedy.startswith("activation checkpointing")
