"""Who holds the memory of a moment: what each allocation is for, by its stack, its lifetime and its phase."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.lifetimes import BEFORE, Lifetimes
from whystall.memory.phases import Phase, Phases
from whystall.memory.results import Category, Held, Holder
from whystall.memory.stacks import Mark, Stacks

__all__ = ["categorize", "held_by", "holders_of"]

_ORDER: Final = tuple(Category)
_NUMBER: Final = {category: number for number, category in enumerate(_ORDER)}
_BECAUSE: Final[Mapping[Category, str]] = MappingProxyType({
    Category.PARAMETERS: "made, moved or loaded by torch.nn, and still there at the end",
    Category.GRADIENTS: "made in the backward pass, and still there when the optimizer ran",
    Category.OPTIMIZER_STATE: "made by the optimizer, and still there after its step",
    Category.ACTIVATIONS: "made in a forward pass, and still there in the backward pass",
    Category.TEMPORARIES: "freed in the phase in which it was made",
    Category.COMMUNICATION: "asked for by torch.distributed",
    Category.INPUT: "asked for by torch.utils.data",
    Category.BEFORE: "no event of the record allocates it",
    Category.UNKNOWN: "neither its frames nor its lifetime tell",
})  # fmt: skip


def categorize(alive: Lifetimes, stacks: Stacks, phases: Phases) -> NDArray[np.int8]:
    """The number of the category of each allocation, in the order of `Category`."""
    events = len(phases.at)
    marks = stacks.marks_of(alive.stack)
    phase = np.append(phases.at, np.int8(Phase.UNKNOWN))[np.where(alive.begin == BEFORE, -1, alive.begin)]
    optimizer, backward = phases.starts(Phase.OPTIMIZER), phases.starts(Phase.BACKWARD)
    stays = alive.end >= events
    left_phase = alive.end >= _next_change(phases.at, alive.begin)
    sees_optimizer = alive.end >= _next(optimizer, alive.begin, events + 1)
    sees_backward = alive.end >= _next(backward, alive.begin, events + 1)
    forward = phase == Phase.FORWARD
    recomputed = (phase == Phase.BACKWARD) & ((marks & Mark.FORWARD) > 0)
    kept = _kept(alive, phases)

    def has(mark: Mark) -> NDArray[np.bool_]:
        return (marks & mark) > 0

    rules: list[tuple[NDArray[np.bool_], Category]] = [
        (has(Mark.OPTIMIZER_STATE) & (stays | left_phase), Category.OPTIMIZER_STATE),
        (has(Mark.OPTIMIZER) & (stays | left_phase), Category.OPTIMIZER_STATE),
        (has(Mark.OPTIMIZER), Category.TEMPORARIES),
        (has(Mark.COMMUNICATION), Category.COMMUNICATION),
        (has(Mark.INPUT), Category.INPUT),
        (has(Mark.PARAMETERS) & ~has(Mark.FORWARD) & stays, Category.PARAMETERS),
        (alive.begin == BEFORE, Category.BEFORE),
        (has(Mark.GRADIENT), Category.GRADIENTS),
        ((phase == Phase.BACKWARD) & ~recomputed & sees_optimizer, Category.GRADIENTS),
        ((forward & sees_backward & ~kept) | recomputed, Category.ACTIVATIONS),
        ((forward | (phase == Phase.BACKWARD) | (phase == Phase.SETUP)) & ~stays & ~left_phase, Category.TEMPORARIES),
        ((phase == Phase.BACKWARD) & ~stays & (len(optimizer) > 0), Category.TEMPORARIES),
    ]
    return np.select([rule for rule, _ in rules], [_NUMBER[category] for _, category in rules],
                     _NUMBER[Category.UNKNOWN]).astype(np.int8)  # fmt: skip


def _next(rows: NDArray[np.int64], begin: NDArray[np.int64], never: int) -> NDArray[np.int64]:
    """The first of ``rows`` after each beginning."""
    out: NDArray[np.int64] = np.append(rows, never)[np.searchsorted(rows, begin, side="right")]
    return out


def _next_change(at: NDArray[np.int8], begin: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row at which the phase after that of each beginning begins."""
    return _next(np.flatnonzero(np.append(False, at[1:] != at[:-1])), begin, len(at) + 1)


def _kept(alive: Lifetimes, phases: Phases) -> NDArray[np.bool_]:
    """What outlives the step after its own: no activation, whatever it is."""
    steps = phases.steps
    after = np.searchsorted(steps, alive.begin, side="right") + 1
    never = len(phases.at) + 1
    limit: NDArray[np.int64] = np.append(steps, [never, never])[np.minimum(after, len(steps) + 1)]
    out: NDArray[np.bool_] = (alive.begin != BEFORE) & (alive.end > limit)
    return out


def held_by(category: NDArray[np.int8], size: NDArray[np.int64]) -> tuple[Held, ...]:
    """The bytes of each category that holds any, the most first."""
    total = np.zeros(len(_ORDER), np.int64)
    np.add.at(total, category, size)
    count = np.bincount(category, minlength=len(_ORDER))
    held = [Held(kind, int(total[number]), int(count[number])) for number, kind in enumerate(_ORDER) if count[number]]
    return tuple(sorted(held, key=lambda one: -one.bytes))


def holders_of(alive: Lifetimes, category: NDArray[np.int8], stacks: Stacks, texts: tuple[str, ...]) -> list[Holder]:
    """The allocations by category, line and label, the most bytes first."""
    keys = np.column_stack(
        [
            category.astype(np.int64),
            stacks.sites_of(alive.stack),
            alive.metadata.astype(np.int64),
        ]
    )
    distinct, place, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, place.reshape(-1), alive.size)
    out = []
    for (kind, site, label), bytes_, times in zip(distinct.tolist(), total.tolist(), count.tolist(), strict=True):
        where = stacks.sites[site] if site >= 0 else None
        out.append(
            Holder(
                category=_ORDER[kind],
                site=None if where is None else _line(where.file, where.line),
                function=None if where is None else where.function,
                label=texts[label] if label >= 0 else None,
                bytes=bytes_,
                count=times,
                because=_BECAUSE[_ORDER[kind]],
            )
        )
    return sorted(out, key=lambda one: (-one.bytes, one.category, one.site or ""))


def _line(file: str, line: int | None) -> str:
    return file if line is None else f"{file}:{line}"
