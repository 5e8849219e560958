"""The links of a trace: launches, nesting, and the forward operator of each backward one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import nearest_marked, nest
from whystall.trace.columns import matching
from whystall.trace.lookup import first_row_after, first_row_of, last_row_before

HOST_TABLES: Final = ("operators", "annotations", "python_functions", "runtime_calls")
# For events with the same start and end: the lower rank is outside.
_RANKS: Final = {"python_functions": 0, "annotations": 1, "operators": 2, "runtime_calls": 3}
MODULE_PREFIX: Final = "nn.Module: "
"""How torch's profiler begins the name of a module's call."""
_AUTOGRAD_FLOWS: Final = ("fwdbwd", "forward_backward")
_NO_ROW: Final = -1


@dataclass(frozen=True, slots=True)
class HostNesting:
    """Nesting of all host events in one numbering: the rows of `HOST_TABLES`, table after table."""

    order: NDArray[np.uint32]
    parent: NDArray[np.int32]
    self_ns: NDArray[np.int64]
    offsets: dict[str, tuple[int, int]]

    def nearest(self, table: str, marked: NDArray[np.bool_] | None = None) -> NDArray[np.int32]:
        """Per host event the row in ``table`` of its nearest ancestor (of those ``marked``), or -1."""
        first, last = self.offsets[table]
        mark = np.zeros(len(self.parent), np.uint8)
        mark[first:last] = 1 if marked is None else marked
        found = nearest_marked(self.order, self.parent, mark)
        found[found >= 0] -= first
        return found

    def rows(self, table: str, values: NDArray[Any]) -> NDArray[Any]:
        """The part of ``values`` (one per host event) that belongs to ``table``."""
        first, last = self.offsets[table]
        return values[first:last]


def nest_host(tables: dict[str, pl.DataFrame]) -> HostNesting:
    """Nests the host events of a trace by containment per thread; overlaps are siblings."""
    offsets: dict[str, tuple[int, int]] = {}
    total = 0
    for name in HOST_TABLES:
        offsets[name] = (total, total + len(tables[name]))
        total += len(tables[name])
    start = _column(tables, "ts_ns", np.int64)
    end = start + _column(tables, "duration_ns", np.int64)
    rank = np.concatenate([np.full(len(tables[name]), _RANKS[name], np.uint8) for name in HOST_TABLES])
    order, parent, self_ns = nest(_column(tables, "thread", np.int32), start, end, rank)
    return HostNesting(order, parent, self_ns, offsets)


def _column(tables: dict[str, pl.DataFrame], column: str, dtype: type[Any]) -> NDArray[Any]:
    return np.concatenate([tables[name][column].to_numpy() for name in HOST_TABLES]).astype(dtype, copy=False)


def link_host(tables: dict[str, pl.DataFrame], nesting: HostNesting) -> None:
    """Adds self times and the links among host tables, in place."""
    operator = nesting.nearest("operators")
    frame = nesting.nearest("python_functions")
    modules = is_module(tables["python_functions"]["name"])
    module = nesting.nearest("python_functions", modules)
    own = np.arange(len(modules), dtype=np.int32)
    innermost_module = np.where(modules, own, nesting.rows("python_functions", module))
    links = {
        "operators": {"parent": operator, "frame": frame},
        "annotations": {},
        "python_functions": {"parent": frame, "operator": operator},
        "runtime_calls": {"operator": operator, "frame": frame},
    }
    for name in HOST_TABLES:
        columns = [pl.Series("self_ns", nesting.rows(name, nesting.self_ns).copy())]
        columns += [link_series(column, nesting.rows(name, rows)) for column, rows in links[name].items()]
        if name == "python_functions":
            columns.append(link_series("module", innermost_module))
        tables[name] = tables[name].with_columns(columns)
    tables["operators"] = tables["operators"].with_columns(link_series("forward", _forward_of(tables["operators"])))


def is_module(names: pl.Series) -> NDArray[np.bool_]:
    """Which Python calls are calls of an ``nn.Module``."""
    return matching(names, lambda text: text.startswith(MODULE_PREFIX))


def link_series(name: str, rows: NDArray[Any]) -> pl.Series:
    """A link column from row numbers: -1 becomes null."""
    series = pl.Series(name, rows.astype(np.int32, copy=False))
    return pl.select(pl.when(series >= 0).then(series).alias(name)).to_series()


def rows_of(series: pl.Series) -> NDArray[np.int32]:
    """Row numbers from a link column: null becomes -1."""
    # Filling is a query, which costs more than the rows of most traces do.
    full = series.fill_null(_NO_ROW) if series.null_count() else series
    return full.to_numpy(writable=True).astype(np.int32, copy=False)


def _forward_of(operators: pl.DataFrame) -> NDArray[np.int32]:
    """For each backward operator the forward operator with its sequence number, else -1.

    A backward operator names the thread of its forward (``Fwd thread id`` above 0). Several forward operators can carry
    the same number (an operator and its calls): the latest to start before the backward counts, the innermost; all lie
    in the same module.
    """
    out = np.full(len(operators), _NO_ROW, np.int32)
    sequence = _whole(operators["sequence"])
    is_backward = _whole(operators["forward_thread"]) > 0
    backward = np.flatnonzero((sequence >= 0) & is_backward)
    forward = np.flatnonzero((sequence >= 0) & ~is_backward)
    start = operators["ts_ns"].to_numpy()
    found = last_row_before(sequence[backward], start[backward], sequence[forward], start[forward])
    out[backward] = _picked(forward, found)
    return out


def link_device(tables: dict[str, pl.DataFrame]) -> None:
    """Adds to device events their launch call, operator and Python frame, in place."""
    events = tables["device_events"]
    runtime = tables["runtime_calls"]
    launch = _launch_of(events, runtime)
    launch = np.where(launch >= 0, launch, _launch_by_flow(events, tables["flows"], runtime))
    operator = _through(launch, runtime["operator"])
    frame = _through(launch, runtime["frame"])
    by_id = _by_external_id(events, tables["operators"])
    operator = np.where(operator >= 0, operator, by_id)
    frame = np.where(frame >= 0, frame, _through(operator, tables["operators"]["frame"]))
    tables["device_events"] = events.with_columns(
        link_series("launch", launch), link_series("operator", operator), link_series("frame", frame)
    )


def _through(rows: NDArray[np.int32], column: pl.Series) -> NDArray[np.int32]:
    """``column`` at ``rows``; -1 stays -1."""
    targets = rows_of(column)
    if not len(targets):
        return np.full(len(rows), _NO_ROW, np.int32)
    return np.where(rows >= 0, targets[np.maximum(rows, 0)], _NO_ROW).astype(np.int32)


def _launch_of(events: pl.DataFrame, runtime: pl.DataFrame) -> NDArray[np.int32]:
    """The call with the event's correlation id: among several the last to start before the event does, else the next.

    One launch may own many events (a graph); an id of 0 or below names no launch.
    """
    out = np.full(len(events), _NO_ROW, np.int32)
    named, wanted = _whole(runtime["correlation"]), _whole(events["correlation"])
    calls, rows = np.flatnonzero(named > 0), np.flatnonzero(wanted > 0)
    named, wanted = named[calls], wanted[rows]
    ordered = np.sort(named)
    if (ordered[1:] != ordered[:-1]).all():
        out[rows] = _picked(calls, first_row_of(wanted, named))
        return out
    began, at = runtime["ts_ns"].to_numpy()[calls], events["ts_ns"].to_numpy()[rows]
    before = last_row_before(wanted, at, named, began)
    after = first_row_after(wanted, at, named, began)
    out[rows] = _picked(calls, np.where(before >= 0, before, after))
    return out


def _launch_by_flow(events: pl.DataFrame, flows: pl.DataFrame, runtime: pl.DataFrame) -> NDArray[np.int32]:
    """The call that a flow arrow connects with the event, for events without a correlation id."""
    out = np.full(len(events), _NO_ROW, np.int32)
    lost = np.flatnonzero(events["correlation"].is_null().to_numpy())
    if not len(lost) or flows.is_empty() or runtime.is_empty():
        return out
    arrows = ~matching(flows["category"], lambda category: category in _AUTOGRAD_FLOWS)
    phase, number = flows["phase"].to_numpy(), _whole(flows["id"])
    heads, tails = np.flatnonzero(arrows & (phase == ord("f"))), np.flatnonzero(arrows & (phase == ord("s")))
    head = _picked(heads, _at_instant(events, lost, flows, heads))
    tail = _picked(tails, first_row_of(number[head], number[tails]))
    known = (head >= 0) & (tail >= 0)
    out[lost[known]] = _at_instant(flows, tail[known], runtime, np.arange(len(runtime)))
    return out


def _at_instant(
    seekers: pl.DataFrame, rows: NDArray[np.intp], among: pl.DataFrame, of: NDArray[np.intp]
) -> NDArray[np.int64]:
    """For each of ``rows`` the first place in ``of`` whose row begins at its instant on its thread, else -1."""
    at, began = seekers["ts_ns"].to_numpy()[rows], among["ts_ns"].to_numpy()[of]
    places = first_row_after(_whole(seekers["thread"])[rows], at, _whole(among["thread"])[of], began)
    return np.where((places >= 0) & (began[np.maximum(places, 0)] == at), places, _NO_ROW) if len(of) else places


def _by_external_id(events: pl.DataFrame, operators: pl.DataFrame) -> NDArray[np.int32]:
    """The first operator with the event's external id."""
    out = np.full(len(events), _NO_ROW, np.int32)
    named, wanted = _whole(operators["external_id"]), _whole(events["external_id"])
    # Kineto of 2022 writes the correlation id as external id: those name no operator.
    rows = np.flatnonzero((wanted > 0) & (wanted != _whole(events["correlation"])))
    held = np.flatnonzero(named > 0)
    out[rows] = _picked(held, first_row_of(wanted[rows], named[held]))
    return out


def _whole(numbers: pl.Series) -> NDArray[np.int64]:
    """The numbers of a column; null becomes -1."""
    full = numbers.fill_null(_NO_ROW) if numbers.null_count() else numbers
    return full.to_numpy().astype(np.int64, copy=False)


def _picked(rows: NDArray[np.intp], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """``rows`` at ``places``; -1 stays -1."""
    return np.where(places >= 0, rows[np.maximum(places, 0)], _NO_ROW) if len(rows) else places
