"""The limit of a larger batch, in a sentence."""

from __future__ import annotations

from whystall.memory.results import BatchRoom
from whystall.report.format import size

_STAYING = "parameters, gradients and the optimizer's state"


def told_room(room: BatchRoom) -> str:
    """Memory that grows with the batch, memory that does not, and the largest factor."""
    grows, stays = size(room.grows_bytes), size(room.stays_bytes)
    untold = f" (of {size(room.untold_bytes)} it is not known)" if room.untold_bytes else ""
    most = "activations stand" if room.grows_bytes >= room.stays_bytes else f"{_STAYING} stand"
    parts = f"{grows} grow with it (activations, input), {stays} do not ({_STAYING}){untold}"
    return f"a larger batch: {most} in its way; at the peak of step {room.step} {parts}{_left(room)}"


def _left(room: BatchRoom) -> str:
    if room.left_bytes is None:
        return ""
    besides = "" if room.outside_bytes is not None else ", less what lies outside torch"
    times = (room.left_bytes + room.grows_bytes) * 100 // room.grows_bytes / 100  # at most: rounded down
    left = f"{size(room.left_bytes)} of the device are left{besides}"
    return f"; {left}: at most {times:g} times the batch, if they grow as it does"
