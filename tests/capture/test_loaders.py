"""Loaders are counted by their epochs, also where each epoch has one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from whystall.capture.loaders import LoadersSeen


def loader(workers: int = 2, batch_size: int = 64) -> Any:
    return SimpleNamespace(
        num_workers=workers, batch_size=batch_size, pin_memory=False, persistent_workers=False, prefetch_factor=2
    )


def test_batches_are_counted_of_the_loader_that_was_begun_last() -> None:
    seen, data = LoadersSeen(), TensorDataset(torch.arange(10))
    seen.handed_out()  # of a loader that was begun before we were
    training, validation = DataLoader(data, batch_size=4), DataLoader(data, batch_size=5)
    for one, batches in ((training, 3), (validation, 1), (training, 3), (validation, 1)):
        seen.asked(one)
        for _ in range(batches):
            seen.handed_out()
    assert [(one["epochs"], one["batches"], one["taken"]) for one in seen.told()] == [(2, 3, 6), (2, 2, 2)]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        raise AssertionError("torch warns of streams whose length was asked")


class Odd(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter((0, 1))


@pytest.mark.parametrize(
    "made", [lambda: DataLoader(Stream()), lambda: DataLoader(TensorDataset(torch.arange(2)), sampler=Odd())]
)
def test_what_has_no_length_is_not_asked_for_it(made: Any) -> None:
    seen = LoadersSeen()
    seen.asked(made())
    assert [(one["epochs"], one["batches"]) for one in seen.told()] == [(1, None)]


def pad(rows: list[Any], *, to: int = 0) -> list[Any]:
    return rows[:to]


class Padder:
    def __call__(self, rows: list[Any]) -> list[Any]:
        return rows

    def put(self, rows: list[Any]) -> list[Any]:
        return rows


class Padded(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


PLAIN = TensorDataset(torch.arange(2))


@pytest.mark.parametrize(
    ("made", "function"),
    [
        (DataLoader(PLAIN, collate_fn=pad), pad),
        (DataLoader(PLAIN, collate_fn=partial(pad, to=3)), pad),
        (DataLoader(PLAIN, collate_fn=Padder()), Padder.__call__),
        (DataLoader(PLAIN, collate_fn=Padder().put), Padder.put),
        (DataLoader(Padded(torch.arange(2))), Padded.__getitem__),
        (DataLoader(PLAIN), None),
    ],
)
def test_the_users_function_that_makes_batches_is_known(made: Any, function: Any) -> None:
    seen = LoadersSeen()
    seen.asked(made)
    if function is None:
        assert seen.maker is None
    else:
        assert seen.maker is not None
        assert seen.maker[1:3] == (__file__, function.__code__.co_firstlineno)


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
