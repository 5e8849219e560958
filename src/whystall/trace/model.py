"""The Trace: a recording as typed Polars tables that refer to each other by row number.

Times are integer nanoseconds (since 1970 where the file says so), sizes bytes. Every table is sorted by ``ts_ns``. A
link column holds the row of another table and is null where the link is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Events that were set aside because they cannot be true, by reason."""

    reason: str
    events: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a trace, and its problems. ``name`` is the file's base name."""

    name: str
    file_bytes: int
    raw_bytes: int
    events: int
    truncated: bool
    warnings: tuple[str, ...] = ()
    quarantined: tuple[Quarantine, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One process's recording.

    Tables and their columns (``?``: may be null; a name in brackets is the table a row number refers to):

    ``operators``
        ts_ns, duration_ns, name, thread, self_ns, parent? [operators], frame? [python_functions],
        forward? [operators, for backward operators], external_id?, sequence?, forward_thread?, input_dims?,
        input_types?, input_strides?, concrete_inputs?, call_stack?, module_hierarchy?
    ``python_functions``
        ts_ns, duration_ns, name, thread, self_ns, parent? [python_functions], operator? [operators],
        module? [python_functions: the innermost ``nn.Module`` call, itself included], python_id?,
        python_parent_id?, module_id?
    ``runtime_calls``
        ts_ns, duration_ns, name, thread, self_ns, operator? [operators], frame? [python_functions],
        correlation?, external_id?
    ``device_events``
        ts_ns, duration_ns, name, kind (kernel, memcpy, memset, accelerator), device, stream, thread,
        launch? [runtime_calls], operator? [operators], frame? [python_functions], step? [steps],
        correlation?, external_id?, bytes?, grid?, block?, registers_per_thread?, shared_memory_bytes?,
        blocks_per_sm?, warps_per_sm?, occupancy_percent?, context?, queued?
    ``annotations``, ``device_annotations``
        ts_ns, duration_ns, name, thread (+ self_ns, external_id? for host annotations)
    ``steps``
        name, ts_ns, duration_ns, thread
    ``collectives``
        source (device, operator, annotation), row [that table], collective?, dtype?, in_elements?,
        out_elements?, group?, group_size?, group_ranks?, sequence_number?, peers? (the other ranks of a message)
    ``memory_events``
        ts_ns, thread, device_type?, device?, address?, bytes?, total_allocated?, total_reserved?
    ``counters``
        ts_ns, name, value, device? (null: unknown), unit?: samples of device counters; a value holds
        from its time until the next of the same device and name
    ``flows``
        ts_ns, thread, category, phase, id?
    ``synchronizations``
        ts_ns, duration_ns, name, device?, stream?, correlation?, wait_on_stream?, wait_on_correlation?
    ``other_events``
        ts_ns, duration_ns, name, category, thread
    ``extra_arguments``
        table, row [that table], key, value: every argument that has no column of its own
    ``threads``
        pid?, tid?, name?; ``thread`` columns are its row numbers

    ``host_order`` lists the events of operators, annotations, python_functions and runtime_calls (one
    numbering, in this sequence) by thread, then start, longest first.
    """

    source: Source
    metadata: Metadata
    threads: pl.DataFrame
    operators: pl.DataFrame
    python_functions: pl.DataFrame
    runtime_calls: pl.DataFrame
    device_events: pl.DataFrame
    annotations: pl.DataFrame
    device_annotations: pl.DataFrame
    steps: pl.DataFrame
    steps_from: str | None
    collectives: pl.DataFrame
    memory_events: pl.DataFrame
    counters: pl.DataFrame
    flows: pl.DataFrame
    synchronizations: pl.DataFrame
    other_events: pl.DataFrame
    extra_arguments: pl.DataFrame
    host_order: NDArray[np.uint32] = field(repr=False)

    @property
    def name(self) -> str:
        """The base name of the file."""
        return self.source.name

    @property
    def rank(self) -> int | None:
        """The rank that the file names, if it does."""
        return self.metadata.rank

    def __repr__(self) -> str:
        """One line: where from, how many events of each kind."""
        counts = ", ".join(f"{len(getattr(self, table)):,} {table.replace('_', ' ')}" for table in MAIN_TABLES)
        return f"Trace({self.source.name!r}: {counts})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(table.replace('_', ' '))}</th>"
            f"<td>{len(getattr(self, table)):,}</td></tr>"
            for table in TABLES
            if len(getattr(self, table))
        )
        return f"<table><caption>{escape(self.source.name)}</caption>{rows}</table>"


MAIN_TABLES = ("operators", "python_functions", "runtime_calls", "device_events")
TABLES = (
    "threads",
    "operators",
    "python_functions",
    "runtime_calls",
    "device_events",
    "annotations",
    "device_annotations",
    "steps",
    "collectives",
    "memory_events",
    "counters",
    "flows",
    "synchronizations",
    "other_events",
    "extra_arguments",
)
