"""Names around host events: the frames of libraries and the operators that they were made in."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import distinct, matching
from whystall.trace.link import rows_of
from whystall.vocabulary.frames import frame_of, owner

_DEEPEST: Final = 200
_FRAMES_OF_STACK: Final = ";"


def within_operators(rank: RankCase, operator: NDArray[np.int64], pattern: re.Pattern[str]) -> Mask:
    """Whether an operator (a row, -1: none) or one around it has a name that matches."""
    table = rank.trace.operators
    if table.is_empty():
        return np.zeros(len(operator), np.bool_)
    return climbed(operator, matching(table["name"], pattern.search), rows_of(table["parent"]))


def within_library(
    rank: RankCase, frame: NDArray[np.int64], operator: NDArray[np.int64], pattern: re.Pattern[str]
) -> Mask:
    """Whether frames around events match, from the inside out up to the first of the user's own.

    ``frame`` and ``operator`` are the rows that an event was made in (-1: none). Operators may carry stacks as texts
    where the calls of Python were not recorded.
    """
    if rank.has_frames:
        table = rank.trace.python_functions
        of_operator = rows_of(rank.trace.operators["frame"]).astype(np.int64)
        at = np.where(frame >= 0, frame, np.append(of_operator, -1)[operator])
        wanted, own = matching(table["name"], pattern.search), matching(table["name"], _is_the_users)
        return climbed(at, wanted, rows_of(table["parent"]), last=own)
    stacks = rank.trace.operators["call_stack"]
    if stacks.null_count() == len(stacks):
        return np.zeros(len(operator), np.bool_)
    known = {text: _in_stack(text, pattern) for text in distinct(stacks)}
    found = np.array([known.get(text, False) for text in stacks.to_list()], np.bool_)
    return np.append(found, np.False_)[operator]


def _in_stack(stack: str, pattern: re.Pattern[str]) -> bool:
    for name in stack.split(_FRAMES_OF_STACK):
        if pattern.search(name):
            return True
        if _is_the_users(name):
            return False
    return False


def _is_the_users(name: str) -> bool:
    frame = frame_of(name)
    return frame is not None and owner(frame.file) == "user"


def climbed(rows: NDArray[np.int64], wanted: Mask, parent: NDArray[np.int32], *, last: Mask | None = None) -> Mask:
    """Whether a row or one around it is wanted; a row of ``last`` is looked at, and none around it."""
    found = np.zeros(len(rows), np.bool_)
    at = rows.astype(np.int64)
    for _ in range(_DEEPEST):
        inside = at >= 0
        if not inside.any():
            break
        here = np.maximum(at, 0)
        found |= inside & wanted[here]
        ends = found if last is None else found | last[here]
        at = np.where(inside & ~ends, parent[here], -1)
    return found
