"""The function behind most of a recording's Python, and its kind of work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from whystall.diagnosis.case import Case
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import codes, distinct
from whystall.trace.link import rows_of
from whystall.vocabulary.frames import frame_of
from whystall.vocabulary.python_work import work_of

# Frames of a builtin and of its callers are of the same work; further out is the loop.
_MOST_CALLERS: Final = 8
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class PythonWork:
    """The innermost function with a file that takes most, its share, and the kind of most of the work, where known."""

    function: str
    share: float
    kind: str | None


def python_work(case: Case, rank: RankCase, nodes: Mask) -> PythonWork | None:
    """The work of some host nodes of a rank, by their Python frames; ``None`` where most of them have none."""
    graph = case.replayed
    first, last = rank.offsets["python_functions"]
    rows = np.flatnonzero(case.in_window(nodes))
    total = int(graph.duration[rows].sum())
    rows = rows[(graph.event[rows] >= first) & (graph.event[rows] < last)]
    frames = rank.trace.python_functions
    if not len(rows) or total <= 0:
        return None
    took = np.bincount(graph.event[rows] - first, weights=graph.duration[rows], minlength=len(frames))
    parent = rows_of(frames["parent"])
    names, name_of = distinct(frames["name"]), codes(frames["name"])
    functions, kinds = Counter[str](), Counter[str]()
    for row in np.flatnonzero(took).tolist():
        at, function, kind = row, None, None
        for _ in range(_MOST_CALLERS):
            name = names[name_of[at]]
            function = function or (name if frame_of(name) is not None else None)
            kind = kind or work_of(name)
            at = int(parent[at])
            if at < 0 or (function is not None and kind is not None):
                break
        functions[function or ""] += int(took[row])
        kinds[kind or ""] += int(took[row])
    function, most = max(functions.items(), key=lambda item: (bool(item[0]), item[1], item[0]))
    kind, of_kind = max(kinds.items(), key=lambda item: (item[1], item[0]))
    if not function:
        return None
    return PythonWork(function, most / total, kind if kind and of_kind >= _MOSTLY * total else None)
