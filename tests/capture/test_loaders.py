"""Loaders are counted by their epochs, also where each epoch has one of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from whystall.capture.loaders import LoadersSeen


def loader(workers: int = 2, batch_size: int = 64) -> Any:
    return SimpleNamespace(
        num_workers=workers, batch_size=batch_size, pin_memory=False, persistent_workers=False, prefetch_factor=2
    )


def test_each_loader_has_its_epochs() -> None:
    seen, training, validation = LoadersSeen(), loader(), loader(0, 256)
    for one in (training, training, validation, training):
        seen.asked(one)
    assert [(one["workers"], one["batch_size"], one["epochs"]) for one in seen.told()] == [(2, 64, 3), (0, 256, 1)]


def test_a_thousand_loaders_of_one_epoch_each_are_a_thousand_epochs() -> None:
    seen, kept = LoadersSeen(), [loader() for _ in range(1000)]
    for one in kept:
        seen.asked(one)
    told = seen.told()
    assert len(told) == 32
    assert sum(one["epochs"] for one in told) == 1000
    seen.asked(loader(workers=7))  # of a kind that nobody has seen: there is no more room
    assert len(seen.told()) == 32


def test_another_loader_in_its_place_begins_anew() -> None:
    seen, one = LoadersSeen(), loader()
    seen.asked(one)
    seen.asked(one)
    one.batch_size = 8
    seen.asked(one)
    assert [(told["batch_size"], told["epochs"]) for told in seen.told()] == [(8, 1)]
