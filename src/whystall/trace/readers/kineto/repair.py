"""Repairs of known peculiarities, each with the trace it was seen in."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.columns import matching, stacked
from whystall.trace.readers.kineto import categories
from whystall.trace.readers.kineto.raw import nullable
from whystall.trace.readers.kineto.tables import Build

REPAIRED: Final = (categories.DEVICE, categories.RUNTIME, categories.OPERATOR, categories.ANNOTATION, categories.PYTHON)
"""The tables that are looked at here, also those without rows."""
_MARK: Final = re.compile(r"^(ProfilerStep\s*#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#)")
_STREAM_NAME: Final = re.compile(r"^\s*(?:(?:stream|device)\s+)?(-?\d{1,18})\s*$", re.IGNORECASE)
_CALL: Final = re.compile(r"^cu(da)?[A-Z]\w*(_v\d+)?$")


def place_device_events(tables: dict[str, pl.DataFrame], threads: pl.DataFrame, build: Build) -> None:
    """Gives device events without a device or stream argument those that their pid and tid name.

    Kineto writes the device as pid and the stream as tid (``7``, in 2021 ``"stream 7"``); MTIA writes
    only a stream, and damaged traces no arguments at all.
    """
    events = tables["device_events"]
    without = int((events["device"].is_null() & events["stream"].is_null()).sum()) if len(events) else 0
    columns = []
    for column, part in (("device", "pid"), ("stream", "tid")):
        numbers = [_number(text) for text in threads[part].to_list()]
        known = np.array([number is not None for number in numbers], np.bool_)
        values = np.array([number or 0 for number in numbers], np.int64)
        thread = events["thread"].to_numpy()
        if not len(values):
            continue
        fallback = nullable(values[thread], known[thread])
        columns.append(events[column].cast(pl.Int64).fill_null(fallback).fill_null(-1).alias(column))
    tables["device_events"] = events.with_columns(columns)
    if without:
        build.warnings.append(
            f"{without:,} device events carry no arguments: device and stream were taken from their process and thread"
        )


def _number(text: str | None) -> int | None:
    match = _STREAM_NAME.match(text) if text is not None else None
    return int(match[1]) if match else None


def move_calls(tables: dict[str, pl.DataFrame], build: Build) -> None:
    """Moves calls of the runtime that a converter wrote under the category of kernels to the calls.

    (nvprof2json and nsys2json have one category, "cuda", for both.)
    """
    events = tables["device_events"]
    # Kernels are called like calls, too (cuApplyLayerNorm), and lie on a stream.
    nowhere = (events["device"].fill_null(-1) < 0) & (events["stream"].fill_null(-1) < 0)
    calls = pl.Series(matching(events["name"], _CALL.match)) & nowhere
    if not calls.any():
        return
    moved = events.filter(calls)
    tables["device_events"] = events.filter(~calls)
    known = tables["runtime_calls"]
    columns = [
        pl.col(name) if name in moved.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in known.schema.items()
    ]
    both = stacked([known, moved.select(columns)])
    tables["runtime_calls"] = both[both["ts_ns"].arg_sort().to_numpy()]
    # Arguments without a column belong to rows, which are others now.
    lost = (categories.DEVICE, categories.RUNTIME)
    build.extra[:] = [extra for extra in build.extra if not len(extra) or extra["table"][0] not in lost]


def move_marks(tables: dict[str, pl.DataFrame], build: Build) -> None:
    """Moves the profiler's marks from the operators, where traces of 2021 have them, to the annotations.

    A mark is no operator: its own time is the program's Python.
    """
    operators, annotations = tables["operators"], tables["annotations"]
    marks = pl.Series(matching(operators["name"], _MARK.match))
    if not marks.any():
        return
    moved = operators.filter(marks).select(annotations.columns)
    both = stacked([annotations, moved])
    order = both["ts_ns"].arg_sort().to_numpy()
    tables["annotations"] = both[order]
    tables["operators"] = operators.filter(~marks)
    is_mark = marks.to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    place_of_operator = np.cumsum(~is_mark) - 1
    place_of_operator[is_mark] = place[len(annotations) :]
    for index, extra in enumerate(build.extra):
        build.extra[index] = _moved_arguments(extra, place, place_of_operator, is_mark)


def _moved_arguments(
    extra: pl.DataFrame, annotation_at: NDArray[np.int64], operator_at: NDArray[np.int64], is_mark: NDArray[np.bool_]
) -> pl.DataFrame:
    """Arguments that have no column, at the rows that their events have now."""
    table = extra["table"][0] if len(extra) else None
    row = extra["row"].to_numpy()
    if table == categories.ANNOTATION:
        return extra.with_columns(row=pl.Series(annotation_at[row]))
    if table != categories.OPERATOR:
        return extra
    moved = pl.lit(categories.ANNOTATION, dtype=pl.Categorical)
    return extra.with_columns(
        table=pl.when(pl.Series(is_mark[row])).then(moved).otherwise(pl.col("table")), row=pl.Series(operator_at[row])
    )


def place_python_functions(tables: dict[str, pl.DataFrame], threads: pl.DataFrame) -> None:
    """Moves Python frames of the thread that does not exist to the thread that runs operators.

    Some Kineto versions write pid 0 and tid 0 for Python functions (seen in bert-small-h100), so that no operator ever
    lies in one. A thread that exists keeps its frames, even if it did nothing else: it may only have waited.
    """
    frames = tables["python_functions"]
    working = tables["operators"]["thread"].value_counts().sort(["count", "thread"], descending=[True, False])
    nowhere = (threads["tid"] == "0").fill_null(value=False).to_numpy()
    if frames.is_empty() or working.is_empty() or frames["thread"].is_in(working["thread"].implode()).any():
        return
    lost = pl.Series(nowhere[frames["thread"].to_numpy()])
    thread = pl.when(lost).then(pl.lit(working["thread"][0], dtype=pl.Int32)).otherwise(pl.col("thread"))
    tables["python_functions"] = frames.with_columns(thread.alias("thread"))
