"""The links of a trace: who launched what, what ran inside what, what is whose backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import nearest_marked, nest
from whystall.trace.columns import matching

HOST_TABLES: Final = ("operators", "annotations", "python_functions", "runtime_calls")
# Of events with the same start and end, which is outside.
_RANKS: Final = {"python_functions": 0, "annotations": 1, "operators": 2, "runtime_calls": 3}
_MODULE_PREFIX: Final = "nn.Module: "
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
    return matching(names, lambda text: text.startswith(_MODULE_PREFIX))


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

    A backward operator names the thread of its forward (``Fwd thread id`` above 0). Several forward
    operators can carry the same number (an operator and what it calls); the latest to start before the
    backward is taken, which is the innermost, and all of them lie in the same module.
    """
    out = np.full(len(operators), _NO_ROW, np.int32)
    numbered = (
        operators.lazy().with_row_index("row").filter(pl.col("sequence").is_not_null() & (pl.col("sequence") >= 0))
    )
    keys = [pl.col("row").cast(pl.Int32), pl.col("ts_ns"), pl.col("sequence").cast(pl.Int64)]
    is_backward = pl.col("forward_thread").fill_null(0) > 0
    backward = numbered.filter(is_backward).select(keys)
    forward = numbered.filter(~is_backward).select(keys).rename({"row": "forward_row"})
    found = (
        backward.sort("ts_ns")
        .join_asof(forward.sort("ts_ns"), on="ts_ns", by="sequence", check_sortedness=False)
        .select("row", "forward_row")
        .drop_nulls()
        .collect()
    )
    out[found["row"].to_numpy()] = found["forward_row"].to_numpy()
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
    """The call with the event's correlation id: of several the last to start before the event does.

    One launch may own many events (a graph); an id of 0 or below names no launch.
    """
    calls = (
        runtime.lazy()
        .with_row_index("call")
        .filter(pl.col("correlation") > 0)
        .select(pl.col("call").cast(pl.Int32), "ts_ns", pl.col("correlation").cast(pl.Int64))
        .collect()
    )
    wanted = events.lazy().with_row_index("row").filter(pl.col("correlation") > 0)
    keyed = wanted.select(pl.col("row").cast(pl.Int32), "ts_ns", pl.col("correlation").cast(pl.Int64)).collect()
    if calls["correlation"].is_unique().all():
        found = keyed.join(calls.select("call", "correlation"), on="correlation", how="inner")
    else:
        before = keyed.sort("ts_ns").join_asof(
            calls.sort("ts_ns"), on="ts_ns", by="correlation", check_sortedness=False
        )
        after = keyed.sort("ts_ns").join_asof(
            calls.sort("ts_ns"), on="ts_ns", by="correlation", strategy="forward", check_sortedness=False
        )
        found = pl.concat([after.drop_nulls("call"), before.drop_nulls("call")])
    out = np.full(len(events), _NO_ROW, np.int32)
    out[found["row"].to_numpy()] = found["call"].to_numpy()
    return out


def _launch_by_flow(events: pl.DataFrame, flows: pl.DataFrame, runtime: pl.DataFrame) -> NDArray[np.int32]:
    """The call that a flow arrow connects with the event, for events without a correlation id."""
    out = np.full(len(events), _NO_ROW, np.int32)
    lost = events.lazy().with_row_index("row").filter(pl.col("correlation").is_null())
    lost_events = lost.select(pl.col("row").cast(pl.Int32), "ts_ns", "thread").collect()
    if lost_events.is_empty() or flows.is_empty() or runtime.is_empty():
        return out
    arrows = flows.filter(~pl.col("category").cast(pl.String).is_in(_AUTOGRAD_FLOWS))
    heads = arrows.filter(pl.col("phase") == ord("f")).select("id", "ts_ns", "thread")
    heads = heads.unique(["ts_ns", "thread"], keep="first", maintain_order=True)
    tails = arrows.filter(pl.col("phase") == ord("s")).select("id", tail_ts="ts_ns", tail_thread="thread")
    calls = runtime.with_row_index("call").select(pl.col("call").cast(pl.Int32), tail_ts="ts_ns", tail_thread="thread")
    found = (
        lost_events.join(heads, on=["ts_ns", "thread"])
        .join(tails.unique("id", keep="first", maintain_order=True), on="id")
        .join(
            calls.unique(["tail_ts", "tail_thread"], keep="first", maintain_order=True), on=["tail_ts", "tail_thread"]
        )
    )
    out[found["row"].to_numpy()] = found["call"].to_numpy()
    return out


def _by_external_id(events: pl.DataFrame, operators: pl.DataFrame) -> NDArray[np.int32]:
    out = np.full(len(events), _NO_ROW, np.int32)
    ids = (
        operators.lazy()
        .with_row_index("operator_row")
        .filter(pl.col("external_id") > 0)
        .select(pl.col("operator_row").cast(pl.Int32), pl.col("external_id").cast(pl.Int64))
        .unique("external_id", keep="first", maintain_order=True)
    )
    # Kineto of 2022 writes the correlation id as external id: those name no operator.
    own = pl.col("correlation").is_null() | (pl.col("external_id") != pl.col("correlation"))
    wanted = events.lazy().with_row_index("row").filter((pl.col("external_id") > 0) & own)
    found = (
        wanted.select(pl.col("row").cast(pl.Int32), pl.col("external_id").cast(pl.Int64))
        .join(ids, on="external_id")
        .collect()
    )
    out[found["row"].to_numpy()] = found["operator_row"].to_numpy()
    return out
