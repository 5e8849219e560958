"""Host activity: calls of CUDA's or HIP's runtime, Python's functions, and events of XLA and JAX.

XLA starts work on threads of its own; no profile shows their time between two calls. The calls of one system thread and
XLA's marks on it stand on lines of different numbers: they are not put together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from whystall.trace.readers.xspace.space import Plane
from whystall.trace.steps import STEP_SCHEMA

_HOST: Final = "/host:"
_PROGRAMS: Final = "/host:metadata"
_PYTHON: Final = "$"
_RUNTIME: Final = r"^(?:hip|cuda|cu)[A-Z]"
_SHARED: Final = ("ts_ns", "duration_ns", "name", "thread")
_FEWEST_STEPS: Final = 2
Tables = dict[str, pl.DataFrame]


def is_host(plane: Plane) -> bool:
    """Whether a plane holds threads of the host; one holds programs."""
    return plane.name.startswith(_HOST) and plane.name != _PROGRAMS


def host_threads(planes: Sequence[Plane]) -> dict[int, str]:
    """The names of the host's threads by their numbers; lines of one number are one thread, from any recorder."""
    names: dict[int, str] = {}
    for line in (line for plane in planes for line in plane.lines):
        names.setdefault(line.number, line.name)
    return names


def thread_table(threads: Mapping[int, str]) -> pl.DataFrame:
    """A row for each thread: pid, tid, name."""
    rows = {"pid": None, "tid": list(map(str, threads)), "name": list(threads.values())}
    return pl.DataFrame(rows, schema={"pid": pl.String, "tid": pl.String, "name": pl.String})


def host_events(planes: Sequence[Plane], threads: Mapping[int, str]) -> pl.DataFrame:
    """All events of all threads, with the rows of their threads in ``thread_table``."""
    row = {number: place for place, number in enumerate(threads)}
    found = [
        plane.events.with_columns(
            pl.Series([row[line.number] for line in plane.lines], dtype=pl.Int32)
            .gather(plane.events["line"])
            .alias("thread")
        )
        for plane in planes
    ]
    return pl.concat(found) if found else pl.DataFrame()


def host_tables(events: pl.DataFrame) -> Tables:
    """The events by table: calls are those that started something on a device or bear the name of a runtime's call.

    Frames keep the form that XLA gives them ("array.py:268 sharding"): without its folder a file may be anyone's, and
    no report is to point at it as the user's own.
    """
    if events.is_empty():
        return {}
    call = pl.col("correlation").is_not_null() | pl.col("name").str.contains(_RUNTIME)
    frame = ~call & pl.col("name").str.starts_with(_PYTHON)
    instant = ~call & ~frame & (pl.col("duration_ns") == 0)
    return {
        "runtime_calls": events.filter(call).select(*_SHARED, "correlation"),
        "python_functions": events.filter(frame).select(*_SHARED).with_columns(pl.col("name").str.slice(1)),
        "annotations": events.filter(~call & ~frame & ~instant).select(_SHARED),
        "other_events": events.filter(instant).select(*_SHARED, pl.lit("traceme").alias("category")),
    }


def host_steps(events: pl.DataFrame) -> pl.DataFrame:
    """The steps that the job marked (``jax.profiler.StepTraceAnnotation``) on the thread that marked most."""
    empty = pl.DataFrame(schema=STEP_SCHEMA)
    marks = events.filter(pl.col("step").is_not_null()) if not events.is_empty() else events
    if len(marks) < _FEWEST_STEPS:
        return empty
    thread = marks["thread"].mode().sort()[0]
    own = marks.filter(pl.col("thread") == thread).sort("ts_ns").unique("step", keep="first", maintain_order=True)
    named = own.with_columns(pl.format("{} {}", "name", "step").alias("name"))
    return named.select(pl.col(column).cast(dtype) for column, dtype in STEP_SCHEMA.items())
