"""Holders of memory at a moment: allocations by purpose, by line and by label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystall.memory.lifetimes import Lifetimes
from whystall.memory.purpose import CATEGORIES, Purposes
from whystall.memory.results import Held, Holder
from whystall.memory.stacks import Stacks

__all__ = ["held_by", "holders_of"]


def held_by(category: NDArray[np.int8], size: NDArray[np.int64]) -> tuple[Held, ...]:
    """The bytes of each category that holds any, the most first."""
    total = np.zeros(len(CATEGORIES), np.int64)
    np.add.at(total, category, size)
    count = np.bincount(category, minlength=len(CATEGORIES))
    held = [
        Held(kind, int(total[number]), int(count[number])) for number, kind in enumerate(CATEGORIES) if count[number]
    ]
    return tuple(sorted(held, key=lambda one: -one.bytes))


def holders_of(alive: Lifetimes, purposes: Purposes, stacks: Stacks, texts: tuple[str, ...]) -> list[Holder]:
    """The allocations by category, line and label, the most bytes first."""
    keys = np.column_stack(
        [
            purposes.category.astype(np.int64),
            stacks.sites_of(alive.stack),
            _labels(alive, texts),
        ]
    )
    distinct, first, place, count = np.unique(keys, axis=0, return_index=True, return_inverse=True, return_counts=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, place.reshape(-1), alive.size)
    out = []
    columns = (distinct.tolist(), total.tolist(), count.tolist(), purposes.reason[first].tolist())
    for (kind, site, label), bytes_, times, reason in zip(*columns, strict=True):
        where = stacks.sites[site] if site >= 0 else None
        out.append(
            Holder(
                category=CATEGORIES[kind],
                site=None if where is None else where.place,
                function=None if where is None else where.function,
                label=texts[label] if label >= 0 else None,
                bytes=bytes_,
                count=times,
                because=purposes.because[reason],
                within=None if where is None else where.within,
            )
        )
    return sorted(out, key=lambda one: (-one.bytes, one.category, one.site or ""))


def _labels(alive: Lifetimes, texts: tuple[str, ...]) -> NDArray[np.int64]:
    """The texts of labels by number; -1 for none, and for the empty one that torch writes where none was set."""
    labels = alive.metadata.astype(np.int64)
    blank = [number for number in np.unique(labels[labels >= 0]).tolist() if not texts[number].strip()]
    return np.where(np.isin(labels, blank), -1, labels)
