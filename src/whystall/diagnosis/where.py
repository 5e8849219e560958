"""Lines of the user's code in which a cause spends its time, with the share of it that they explain.

The innermost frame of the user's own counts in each stack, and if none is the user's, the innermost one of a library. A
backward operator counts at the line of its forward; the work of torch's profiler counts at no line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.candidate import Code
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import CodeLocation
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, NodeKind
from whystall.run_folder.observations import MadeAt, WindowPlace
from whystall.run_folder.samples import ENGINE
from whystall.trace.columns import codes, distinct
from whystall.trace.link import HOST_TABLES, rows_of
from whystall.trace.lookup import last_row_before
from whystall.vocabulary.frames import frame_of, is_profiler, owner

_MOST_PLACES: Final = 3
_EXPLAINED: Final = 0.5
_LEAST_EXPLAINED: Final = 1 / 3
"""Lines, or else functions, explain half of a cause, or lines a third: less would send the reader to the wrong place.

Each line says what part of the cause it explains.
"""
_LEAST_OF_IT: Final = 0.02
# Minimum share of its function's time for a line to be named in place of the function.
_STANDS_OUT: Final = 1 / 3
_DEEPEST_STACK: Final = 200
_FEWEST_LOOKS: Final = 5
_NOWHERE: Final = -1
_PROFILED: Final = -2
_NOBODY, _USER, _LIBRARY, _PROFILER = range(4)
Place = tuple[str, int | None, str | None]
"""A file, the line in it where one is known, and the function or the line's text."""


def code_of(case: Case, nodes: Mask, *, everywhere: bool = False) -> Code:
    """The lines that nodes of the replayed graph were called from, by the nodes' time in the window (or anywhere)."""
    graph = case.replayed
    chosen = nodes if everywhere else case.in_window(nodes & ~case.startup)
    sums: Counter[str] = Counter()
    for rank in case.ranks:
        if not _tells_of_lines(rank):
            continue
        own = chosen & (graph.rank == rank.rank)
        sums[""] += int(graph.duration[own & (graph.event < 0)].sum())  # time without an event has no caller
        for kind in (NodeKind.HOST, NodeKind.DEVICE):
            rows = np.flatnonzero(own & (graph.event >= 0) & (graph.kind == kind))
            events = graph.event[rows].astype(np.int64)
            _add(sums, case, rank, events, graph.duration[rows], on_device=kind == NodeKind.DEVICE)
    if not any(map(_tells_of_lines, case.ranks)):
        return _code_of_looks(case, chosen)
    return heaviest(_places(sums))


def made_at(places: Sequence[MadeAt], code: Code) -> Code:
    """The lines at which a change is to be made, before those that take the time."""
    first = [CodeLocation(file=one.file, line=one.line, symbol=one.text or one.function) for one in places]
    known = {(one.file, one.line) for one in first}
    return Code((*first, *(one for one in code.lines if (one.file, one.line) not in known)), code.explains)


def looks_in(case: Case, rank: RankCase, chosen: Mask) -> list[tuple[WindowPlace, int]]:
    """Where the training thread of a rank was found while chosen host nodes ran, and how often."""
    graph = case.replayed
    places = case.facts.of_rank(rank.rank).in_windows
    if not places or rank.training is None:
        return []
    own = case.rows(rank, NodeKind.HOST)
    own = own[graph.duration[own] > 0]
    if not len(own):
        return []
    clock = graph.clocks.get(rank.rank)
    own = own[np.array([name.endswith(f" thread {rank.training}") for name in graph.lanes])[graph.lane[own]]]
    begin, found = graph.start[own], []
    for one in places if len(own) else ():
        at = np.array(one.at_unix_ns, np.int64)
        at = at if clock is None else clock.shared(at)
        node = own[np.clip(np.searchsorted(begin, at, side="right") - 1, 0, len(own) - 1)]
        inside = chosen[node] & (at >= graph.start[node]) & (at < graph.start[node] + graph.duration[node])
        if inside.any():
            found.append((one, int(np.count_nonzero(inside))))
    return found


def _code_of_looks(case: Case, chosen: Mask) -> Code:
    """The lines at which the training threads were found while host nodes ran: where no stack was recorded."""
    looks: Counter[Place | None] = Counter()
    backward: Counter[Place | None] = Counter()
    for rank in case.ranks:
        for one, count in looks_in(case, rank, chosen):
            counted = backward if one.leaf == ENGINE else looks
            counted[one.file, one.line, one.text or one.function] += count
    # A backward pass is shown at lines of forward passes, if there are any: they are its source.
    found = looks if sum(looks.values()) >= _FEWEST_LOOKS else looks + backward
    return heaviest(found) if sum(found.values()) >= _FEWEST_LOOKS else Code()


def code_of_calls(case: Case, rank: RankCase, calls: Mask, weight: NDArray[np.int64] | None = None) -> Code:
    """The lines from which host events (in their numbering) of the replayed window were called, by their own time.

    ``weight`` is what counts per host event in place of its time, where any of these has some.
    """
    if not _tells_of_lines(rank):
        return Code()
    begin, end = case.window_on(rank)
    events = np.flatnonzero(calls)
    start, duration = (
        np.concatenate([getattr(rank.trace, table)[column].to_numpy() for table in HOST_TABLES])[events]
        for column in ("ts_ns", "duration_ns")
    )
    inside = (start >= begin) & (start < end)
    sums: Counter[str] = Counter()
    if weight is not None and weight[events[inside]].any():
        duration = weight[events]
    _add(sums, case, rank, events[inside], duration[inside], on_device=False)
    return heaviest(_places(sums))


def _tells_of_lines(rank: RankCase) -> bool:
    return rank.has_frames or _has_stacks(rank)


def _has_stacks(rank: RankCase) -> bool:
    """Whether operators carry the stacks that they were called from."""
    return any(distinct(rank.trace.operators["call_stack"]))  # without with_stack older recordings have empty ones


def heaviest(places: Mapping[Place | None, float]) -> Code:
    """The lines that cost most, or where they explain too little the functions, or nothing (`None`: time elsewhere)."""
    total = sum(places.values())
    lines = {place: time for place, time in places.items() if place is not None}
    if total <= 0 or not lines:
        return Code((), 0.0 if total > 0 else None)
    functions: defaultdict[Place, float] = defaultdict(float)
    for (file, _, symbol), time in lines.items():
        functions[file, None, symbol] += time
    explained = 0.0
    tables: tuple[tuple[Mapping[Place, float], float], ...] = (
        (lines, _EXPLAINED),
        (functions, _EXPLAINED),
        (lines, _LEAST_EXPLAINED),
    )
    for table, least in tables:
        chosen = sorted(table, key=lambda place: (-table[place], str(place)))[:_MOST_PLACES]
        explained = sum(table[place] for place in chosen) / total
        if explained >= least:
            chosen = [place for place in chosen if table[place] >= _LEAST_OF_IT * total]
            named = [place if place in lines else _mostly_at(place, functions[place], lines) for place in chosen]
            shares = ((place, round(float(lines.get(place, table.get(place, 0.0)) / total), 3)) for place in named)
            found = (CodeLocation(file=f, line=n, symbol=s, share=share) for (f, n, s), share in shares)
            return Code(tuple(found), round(float(explained), 3))
    return Code((), round(float(explained), 3))


def _mostly_at(function: Place, whole: float, lines: Mapping[Place, float]) -> Place:
    """The line of a function where one of its lines stands out, else the function: several may bear its name."""
    own = [place for place in lines if (place[0], None, place[2]) == function]
    best = max(own, key=lambda place: (lines[place], str(place)))
    return best if lines[best] >= _STANDS_OUT * whole else function


def _places(sums: Mapping[str, int]) -> dict[Place | None, float]:
    out: Counter[Place | None] = Counter()
    for name, time in sums.items():
        out[frame_of(name)] += time
    return dict(out)


def _add(
    sums: Counter[str],
    case: Case,
    rank: RankCase,
    events: NDArray[np.int64],
    weight: NDArray[np.int64],
    *,
    on_device: bool,
) -> None:
    """Adds the time of events to the names of the frames that they were called from; to "" where there is none."""
    frame, operator = _callers(rank, events, on_device=on_device)
    forward = _forward_around(rank, operator)
    if rank.has_frames:
        of_operator = rows_of(rank.trace.operators["frame"])
        known = (frame, _at(of_operator, operator), _at(of_operator, forward))
        place, names = _from_frames(case, rank, known)
    else:
        place, names = _from_stacks(rank, (operator, forward))
    for one in np.unique(place).tolist():
        if one != _PROFILED:
            sums[names[one] if one >= 0 else ""] += int(weight[place == one].sum())


def _forward_around(rank: RankCase, operator: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per operator the forward of it, or of the nearest one around it that has one; -1 where none has.

    Only autograd's own operators name their forward: what these call is of the same line.
    """
    forward, parent = (rows_of(rank.trace.operators[name]).astype(np.int64) for name in ("forward", "parent"))
    found, at = np.full(len(operator), _NOWHERE), operator.copy()
    for _ in range(_DEEPEST_STACK):
        if not (at >= 0).any():
            break
        found = np.where(found == _NOWHERE, _at(forward, at), found)
        at = np.where(found == _NOWHERE, _at(parent, at), _NOWHERE)
    return found


def _callers(
    rank: RankCase, events: NDArray[np.int64], *, on_device: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per event the frame and the operator that it was called from, or -1."""
    if on_device:
        table = rank.trace.device_events
        return rows_of(table["frame"])[events].astype(np.int64), rows_of(table["operator"])[events].astype(np.int64)
    frame, operator = np.full(len(events), _NOWHERE), np.full(len(events), _NOWHERE)
    for name, (first, last) in rank.offsets.items():
        inside = (events >= first) & (events < last)
        rows = events[inside] - first
        table = getattr(rank.trace, name)
        if name == "python_functions":
            frame[inside] = rows
        elif name == "operators":
            frame[inside], operator[inside] = rows_of(table["frame"])[rows], rows
        elif name == "annotations" and inside.any():
            frame[inside] = _frames_around(rank, rows)
        elif name == "runtime_calls":
            frame[inside], operator[inside] = rows_of(table["frame"])[rows], rows_of(table["operator"])[rows]
    return frame, operator


def _frames_around(rank: RankCase, annotations: NDArray[np.int64]) -> NDArray[np.int64]:
    """The innermost call of a Python function around each annotation, or -1."""
    frames, marks = rank.trace.python_functions, rank.trace.annotations[annotations]
    start, thread = marks["ts_ns"].to_numpy(), marks["thread"].to_numpy().astype(np.int64)
    until = start + marks["duration_ns"].to_numpy()
    end = (frames["ts_ns"] + frames["duration_ns"]).to_numpy()
    at = last_row_before(thread, start, frames["thread"].to_numpy().astype(np.int64), frames["ts_ns"].to_numpy())
    parent = rows_of(frames["parent"])
    for _ in range(_DEEPEST_STACK):
        outside = (at >= 0) & (_at(end, at) < until)
        if not outside.any():
            break
        at = np.where(outside, _at(parent, at), at)
    return at


def _from_frames(
    case: Case, rank: RankCase, known: tuple[NDArray[np.int64], ...]
) -> tuple[NDArray[np.int64], list[str]]:
    """A name for each event, from the first of its ``known`` frames in the user's or a library's code."""
    frames = rank.trace.python_functions
    names = distinct(frames["name"])
    name = codes(frames["name"]).astype(np.int64)
    key = ("whose frames", rank.rank)
    if key not in case.kept:
        case.kept[key] = np.array([_whose(text) for text in names], np.int8)
    whose = case.kept[key][name]
    parent = rows_of(frames["parent"])
    place = np.full(len(known[0]), _NOWHERE, np.int64)
    for frame in known:
        rows, inverse = np.unique(frame, return_inverse=True)
        found = _climbed(rows, whose, parent)[inverse]
        place = np.where(place == _NOWHERE, np.where(found >= 0, name[np.maximum(found, 0)], found), place)
    return place, names


def _climbed(rows: NDArray[np.int64], whose: NDArray[np.int8], parent: NDArray[np.int32]) -> NDArray[np.int64]:
    """From each frame outwards the innermost that is the user's, else a library's; those of the profiler apart."""
    own, library = np.full(len(rows), _NOWHERE), np.full(len(rows), _NOWHERE)
    at = rows.copy()
    for _ in range(_DEEPEST_STACK):
        here = np.where(at >= 0, whose[np.maximum(at, 0)], _NOBODY)
        own = np.where(here == _USER, at, np.where(here == _PROFILER, _PROFILED, own))
        library = np.where((library == _NOWHERE) & (here == _LIBRARY), at, library)
        at = np.where((at >= 0) & (own == _NOWHERE), parent[np.maximum(at, 0)], _NOWHERE)
        if (at < 0).all():
            break
    return np.where(own == _NOWHERE, library, own)


def _from_stacks(rank: RankCase, known: tuple[NDArray[np.int64], ...]) -> tuple[NDArray[np.int64], list[str]]:
    """The same for the stacks that operators carry, the innermost frame first."""
    column = rank.trace.operators["call_stack"]
    texts = distinct(column)
    names: dict[str, int] = {}
    of_text = np.array([_innermost(text, names) for text in texts], np.int64)
    text_of = np.full(len(column), _NOWHERE, np.int64)
    text_of[column.is_not_null().to_numpy()] = codes(column.drop_nulls())
    place = np.full(len(known[0]), _NOWHERE, np.int64)
    for operator in known:
        found = _at(of_text, _at(text_of, operator))
        place = np.where(place == _NOWHERE, found, place)
    return place, list(names)


def _innermost(stack: str, names: dict[str, int]) -> int:
    frames = stack.split(";")
    kinds = [_whose(frame) for frame in frames]
    if _PROFILER in kinds[: kinds.index(_USER) if _USER in kinds else None]:
        return _PROFILED
    for wanted in (_USER, _LIBRARY):
        if wanted in kinds:
            return names.setdefault(frames[kinds.index(wanted)], len(names))
    return _NOWHERE


def _whose(name: str) -> int:
    if is_profiler(name):
        return _PROFILER
    frame = frame_of(name)
    return {"user": _USER, "library": _LIBRARY, "nobody": _NOBODY}[owner(frame.file)] if frame is not None else _NOBODY


def _at(values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """``values`` at ``rows``; rows below 0 stay."""
    if not len(values):
        return np.minimum(rows, _NOWHERE)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], rows).astype(np.int64)
