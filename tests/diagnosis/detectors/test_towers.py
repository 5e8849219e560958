"""A tower that no optimizer trains: its whole backward pass is for nothing, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")

WORDS, WIDE = 500, 192


def unread(found: dict[str, Finding]) -> Finding | None:
    """What is said of gradients that nothing reads."""
    one = found.get("compute.redundant-work")
    return one if one is not None and "gradients nothing reads" in one.title else None


def tower(embeds: bool) -> Any:
    first = torch.nn.Embedding(WORDS, WIDE) if embeds else torch.nn.Linear(64, WIDE)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(WIDE, WIDE), torch.nn.GELU())]
    return torch.nn.Sequential(first, *layers)


def worked(way: str) -> Callable[[], object]:
    """A step of two towers of one kind, and of a head on one of them."""
    torch.manual_seed(0)
    embeds = "vectors" not in way
    query, article, head = tower(embeds), tower(embeds), torch.nn.Linear(WIDE, WIDE)
    trained = [*query.parameters()]
    if way == "both are trained":
        trained += article.parameters()
    if way == "one is frozen":
        article.requires_grad_(False)
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    queries, articles = (
        torch.randint(0, WORDS, (32, count)) if embeds else torch.randn(32, count, 64) for count in (8, 24)
    )

    def step() -> None:
        if way == "a head that is not trained":
            loss = head(head(query(articles)).mean(1)).square().mean()
        else:
            loss = (query(queries).mean(1) @ article(articles).mean(1).T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    return step


@pytest.mark.parametrize("way", ["words", "vectors"])
def test_a_tower_beside_the_trained_one_is_worth_its_whole_backward_pass(way: str, tmp_path: Path) -> None:
    """It has three quarters of the rows, and going back takes two thirds of a step, half of it for weights."""
    finding = told_in(worked(way), tmp_path, unread, worth=1.4)
    assert finding.remedy is not None
    assert "requires_grad_(False)" in (finding.remedy.patch or "")


@pytest.mark.parametrize("way", ["both are trained", "one is frozen"])
def test_towers_that_are_trained_or_frozen_are_no_waste(way: str, tmp_path: Path) -> None:
    assert unread(found_in(worked(way), tmp_path)) is None


def test_a_head_on_the_way_to_what_is_trained_hands_gradients_on(tmp_path: Path) -> None:
    finding = unread(found_in(worked("a head that is not trained"), tmp_path))
    assert finding is None or finding.gain is None or finding.gain.expected < 1.1
