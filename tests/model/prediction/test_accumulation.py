"""Gradients that are accumulated as a prediction advises are those of the whole batch, and where it says otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from whystall.report.prediction_text import accumulation_text

PARTS, BATCH = 4, 8


def model(*, normalised: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    middle = [torch.nn.BatchNorm1d(16)] if normalised else [torch.nn.LayerNorm(16)]
    return torch.nn.Sequential(torch.nn.Linear(6, 16), *middle, torch.nn.ReLU(), torch.nn.Linear(16, 5)).double()


def data(*, ignored: bool) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(PARTS * BATCH, 6, dtype=torch.float64), torch.randint(5, (PARTS * BATCH,))
    if ignored:
        y[: BATCH - 1] = -100  # nearly all of the first batch
    return x, y


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def gradients(net: torch.nn.Module, loss: Loss, parts: int, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """As the advice says: each loss divided by how many there are, `backward` on each."""
    for x, y in zip(given[0].chunk(parts), given[1].chunk(parts), strict=True):
        (loss(net(x), y) / parts).backward()
    return torch.cat([weight.grad.flatten() for weight in net.parameters() if weight.grad is not None])


def apart(loss: Loss, *, normalised: bool = False, ignored: bool = False) -> float:
    """By how much accumulated gradients differ from those of the whole batch, as a share."""
    given = data(ignored=ignored)
    whole = gradients(model(normalised=normalised), loss, 1, given)
    added = gradients(model(normalised=normalised), loss, PARTS, given)
    return float((added - whole).norm() / whole.norm())


def mean(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(out, y)


def test_the_advice_is_what_is_tested() -> None:
    text = accumulation_text(PARTS, BATCH, "", PARTS * BATCH)
    assert re.search(r"4 batches of 8 make an effective batch of 32: divide each loss by 4, call backward\(\) on", text)
    assert "batch normalisation sees 8 at a time" in text
    assert "a loss that ignores some labels is to be divided by how many all batches have" in text


def test_a_mean_over_samples_has_the_gradients_of_the_whole_batch() -> None:
    assert apart(mean) < 1e-12


def test_batch_normalisation_has_others() -> None:
    assert apart(mean, normalised=True) > 1e-3


def test_ignored_labels_have_others_and_the_same_where_all_batches_are_counted() -> None:
    assert apart(mean, ignored=True) > 1e-3
    counted = int((data(ignored=True)[1] >= 0).sum())

    def by_all(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parts = PARTS * BATCH / len(y)  # what `gradients` divides by
        return torch.nn.functional.cross_entropy(out, y, reduction="sum") / counted * parts

    assert apart(by_all, ignored=True) < 1e-12
