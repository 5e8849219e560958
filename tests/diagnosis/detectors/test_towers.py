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


def test_forces_of_a_model_of_species_and_places_need_its_whole_backward_pass_but_for_weights(tmp_path: Path) -> None:
    """The table of species is the last that a chain comes to before the places, and hands nothing on."""
    torch.manual_seed(0)
    table, head = torch.nn.Embedding(20, WIDE), torch.nn.Linear(WIDE, 1)
    filters = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(32, WIDE), torch.nn.Tanh()) for _ in range(3))
    mixing = torch.nn.ModuleList(torch.nn.Linear(WIDE, WIDE) for _ in range(3))
    species, places = torch.randint(20, (80,)), torch.randn(80, 3)
    first, other = torch.cartesian_prod(torch.arange(80), torch.arange(80)).unbind(1)
    centres = torch.linspace(0, 5, 32)
    forces: list[Any] = [torch.zeros_like(places)]

    def step() -> None:
        at = (places + 0.01 * forces[0]).requires_grad_(True)
        distance = (at[first] - at[other]).square().sum(1).add(1e-3).sqrt()
        spread = torch.exp(-((distance[:, None] - centres) ** 2))
        x = table(species)
        for one, mix in zip(filters, mixing, strict=True):
            x = x + mix(torch.zeros_like(x).index_add(0, first, one(spread) * x[other]))
        head(x).sum().backward()
        forces[0] = -at.grad

    found = unread(found_in(step, tmp_path))
    assert found is None or found.gain is None or found.gain.expected < 1.4  # weights' gradients; 2.7 was told of all
