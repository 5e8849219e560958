"""Remedies for an allocation that found no room, the fitting one first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.allocator import Allocation, simulate
from whystall.memory.allocator_settings import MIB, AllocatorSettings
from whystall.memory.holders import held_by, holders_of
from whystall.memory.lifetimes import Lifetimes
from whystall.memory.purpose import NUMBERS, Judge, Purposes
from whystall.memory.requests import MOST_SIMULATED, requests_of
from whystall.memory.results import Category, OutOfMemory, Rescue
from whystall.memory.snapshot import DeviceRecord
from whystall.memory.stacks import Mark, Stacks

__all__ = ["add_rescues"]

_MOST_HOLDERS: Final = 10
_MOST_LINES: Final = 3
_WORTH: Final = 0.05  # of allocated memory: a smaller holder is not worth a remedy
_MOST_LIKE_LOGITS: Final = 4  # allocations of the size that the loss requests: more are chance
_EIGHT_BIT: Final = 0.75  # share of 32-bit state that 8 bits save: Dettmers et al., arXiv 2110.02861
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class _Moment:
    """Holders of memory when it ran out."""

    there: Lifetimes
    purposes: Purposes
    stacks: Stacks
    out: OutOfMemory
    asking: int
    """The stack of the request."""

    def of(self, category: Category) -> NDArray[np.bool_]:
        """Memory of a category."""
        chosen: NDArray[np.bool_] = self.purposes.category == NUMBERS[category]
        return chosen

    def bytes_of(self, chosen: NDArray[np.bool_]) -> int:
        """How much some of it holds."""
        return int(self.there.size[chosen].sum())

    def enough(self, bytes_: int) -> bool | None:
        """Whether that amount was the missing one."""
        return None if self.out.missing_bytes is None else bytes_ >= self.out.missing_bytes


def add_rescues(
    out: OutOfMemory,
    record: DeviceRecord,
    alive: Lifetimes,
    stacks: Stacks,
    judge: Judge,
    settings: AllocatorSettings,
    texts: tuple[str, ...],
) -> OutOfMemory:
    """The shortage with the holders of memory at that moment, and the remedies."""
    rows = np.flatnonzero(alive.alive_at(out.event))
    there, purposes = alive.chosen(rows), judge.of(rows, out.event)
    moment = _Moment(there, purposes, stacks, out, int(record.events.stack[out.event]))
    holders = tuple(holders_of(there, purposes, stacks, texts))
    segments, said = _by_segments(out, record, alive, judge, settings)
    loss = _loss(moment)
    others = [*_of_loss(moment, loss), *_of_activations(moment, loss), *_of_states(moment)]
    others = others or list(_of_the_pass(moment))
    return replace(
        out,
        held=held_by(purposes.category, there.size),
        holders=holders[:_MOST_HOLDERS],
        rescues=(*segments, *sorted(others, key=lambda one: -one.frees_bytes)),
        segments=said,
    )


# --- the allocator ----------------------------------------------------------------------------------------------------


def _by_segments(
    out: OutOfMemory, record: DeviceRecord, alive: Lifetimes, judge: Judge, settings: AllocatorSettings
) -> tuple[list[Rescue], str | None]:
    """Expandable segments, if the simulated allocator has room with them; and their effect."""
    if settings.expandable_segments or out.reserved_bytes is None or out.device_free_bytes is None:
        return [], None
    if not 0 < len(alive) <= MOST_SIMULATED:
        return [], None
    whole = out.reserved_bytes + out.device_free_bytes
    stream = int(record.events.stream[out.event])
    requests = [*requests_of(record, alive, out.event), Allocation("asked", out.asked_bytes, stream)]
    if simulate(requests, replace(settings, device_bytes=whole)).failed_at != len(requests) - 1:
        return (
            [],
            "whether expandable segments would have made room is not known: simulated, memory does not run out here",
        )
    course = simulate(requests, replace(settings, expandable_segments=True, device_bytes=whole))
    if course.failed_at is not None:
        return [], "expandable segments are no remedy: simulated, they find no room either"
    left = whole - int(course.allocated_bytes[-1])
    if judge.expects_backward(out.event) and left < out.asked_bytes:
        return [], (
            f"expandable segments are no remedy: simulated, they would serve this request and leave {_size(left)}, and "
            f"the backward pass to come asks for its gradient, {_size(out.asked_bytes)} more"
        )
    known_by = f"simulated: the request is served, with {_size(left)} left"
    return [Rescue("PYTORCH_ALLOC_CONF=expandable_segments:True", out.asked_bytes, True, known_by)], None


# --- the largest holders ----------------------------------------------------------------------------------------------


def _loss(moment: _Moment) -> NDArray[np.bool_]:
    """Memory of the loss over a vocabulary: its functions' results, and the logits (the same size or half)."""
    own = (moment.stacks.marks_of(moment.there.stack) & Mark.LOSS) > 0
    own &= moment.of(Category.ACTIVATIONS) | moment.of(Category.UNKNOWN)
    sizes = set(moment.there.size[own].tolist())
    if _asks_for_loss(moment):
        sizes.add(moment.out.asked_bytes)
    large = [size for size in sizes if size >= _WORTH * moment.out.allocated_bytes]
    alike = np.isin(moment.there.size, [part for size in large for part in (size, size // 2)])
    alike &= moment.of(Category.ACTIVATIONS)
    return own | alike if int(alike.sum()) <= _MOST_LIKE_LOGITS else own


def _asks_for_loss(moment: _Moment) -> bool:
    return bool(int(moment.stacks.marks_of(np.array([moment.asking]))[0]) & Mark.LOSS)


def _of_loss(moment: _Moment, loss: NDArray[np.bool_]) -> Iterator[Rescue]:
    """Not to hold the logits of all tokens at a time."""
    asked = moment.out.asked_bytes if _asks_for_loss(moment) else 0
    held = moment.bytes_of(loss)
    if asked + held < _WORTH * moment.out.allocated_bytes or not asked + held:
        return
    parts = [f"{_size(held)} that it holds"] if held else []
    parts += [f"the {_size(asked)} that were asked for"] if asked else []
    yield Rescue(
        "the loss in chunks of tokens, or fused with the last layer (Liger's fused linear cross entropy), "
        "and no copy of all logits in fp32",
        asked + held,
        moment.enough(asked + held),
        f"logits and loss: {' and '.join(parts)}; its backward pass asks for as large gradients",
    )


def _of_activations(moment: _Moment, loss: NDArray[np.bool_]) -> Iterator[Rescue]:
    """Recomputation of activations that the forward pass keeps."""
    kept = moment.of(Category.ACTIVATIONS) & ~loss
    bytes_ = moment.bytes_of(kept)
    if bytes_ < _WORTH * moment.out.allocated_bytes or not bytes_:
        return
    number = moment.stacks.sites_of(moment.there.stack)
    sites = [site for site in np.unique(number[kept]).tolist() if site >= 0 and moment.stacks.sites[site].is_line]
    by_site = sorted(((moment.bytes_of(kept & (number == site)), site) for site in sites), reverse=True)[:_MOST_LINES]
    named = ", ".join(f"{moment.stacks.sites[site].place} ({_size(held)})" for held, site in by_site)
    marks = moment.stacks.marks_of(moment.there.stack[kept])
    more = (
        "activation checkpointing of more layers"
        if ((marks & Mark.CHECKPOINT) > 0).any()
        else "activation checkpointing"
    )
    yield Rescue(
        f"{more} (torch.utils.checkpoint), or a smaller batch{': most is held by ' + named if named else ''}",
        bytes_,
        moment.enough(bytes_),
        f"{_size(bytes_)} in {int(kept.sum()):,} allocations of the forward pass, less what must be kept as input",
    )


def _of_states(moment: _Moment) -> Iterator[Rescue]:
    """Fewer bits or sharding for state that does not grow with the batch."""
    state = moment.bytes_of(moment.of(Category.OPTIMIZER_STATE))
    if state >= _WORTH * moment.out.allocated_bytes and state:
        frees = int(state * _EIGHT_BIT)
        yield Rescue(
            "the optimizer's state in 8 bits, or divided among ranks (FSDP, ZeRO)",
            frees,
            moment.enough(frees),
            f"{_size(state)} of optimizer state, of which 8 bits keep a quarter",
        )
    whole = moment.bytes_of(moment.of(Category.GRADIENTS) | moment.of(Category.PARAMETERS))
    if whole >= _WORTH * moment.out.allocated_bytes and whole:
        yield Rescue(
            "parameters and gradients divided among ranks (FSDP, ZeRO) or in 16 bits",
            whole // 2,
            moment.enough(whole // 2),
            f"{_size(whole)} of parameters and gradients, half of it on two ranks",
        )


def _of_the_pass(moment: _Moment) -> Iterator[Rescue]:
    """A smaller batch or shorter sequences, if a forward pass made the request."""
    marks = moment.stacks.marks_of(np.append(moment.there.stack, moment.asking))
    of_pass = ((marks & (Mark.FORWARD | Mark.OPERATION)) > 0) & ((marks & (Mark.BACKWARD | Mark.COMMUNICATION)) == 0)
    if not of_pass[-1]:
        return
    held = moment.bytes_of(of_pass[:-1] & ~moment.of(Category.BEFORE) & ~moment.of(Category.PARAMETERS))
    frees = held + moment.out.asked_bytes
    yield Rescue(
        "a smaller batch or shorter sequences, or the pass in parts",
        frees,
        moment.enough(frees),
        f"{_size(held)} that the forward pass holds and the {_size(moment.out.asked_bytes)} that it asked for",
    )


def _size(bytes_: int) -> str:
    return f"{bytes_ / _GIB:.2f} GiB" if bytes_ >= _GIB else f"{bytes_ / MIB:,.0f} MiB"
