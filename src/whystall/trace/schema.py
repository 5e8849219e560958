"""The tables that a reader may fill and their columns: the format's content, before anything is linked.

``Trace`` documents each column. The links between tables are added for every format alike (``trace/link.py``).
"""

from __future__ import annotations

from typing import Final, Literal

Kind = Literal["integer", "float", "text"]
Columns = dict[str, Kind]

_COLLECTIVE: Final[Columns] = {
    "collective": "text",
    "dtype": "text",
    "in_elements": "integer",
    "out_elements": "integer",
    "group": "text",
    "group_size": "integer",
    "group_ranks": "text",
    "sequence_number": "integer",
    "peer": "integer",
}

REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "operators": ("ts_ns", "duration_ns", "name", "thread"),
    "python_functions": ("ts_ns", "duration_ns", "name", "thread"),
    "runtime_calls": ("ts_ns", "duration_ns", "name", "thread"),
    "device_events": ("ts_ns", "duration_ns", "name", "kind"),
    "annotations": ("ts_ns", "duration_ns", "name", "thread"),
    "device_annotations": ("ts_ns", "duration_ns", "name"),
    "memory_events": ("ts_ns",),
    "counters": ("ts_ns", "name", "value"),
    "flows": ("ts_ns", "thread", "category", "phase"),
    "synchronizations": ("ts_ns", "duration_ns", "name"),
    "other_events": ("ts_ns", "duration_ns", "name", "category"),
}
"""By table the columns that every event has: nanoseconds as integers, names as text, threads as rows of ``threads``."""

WITHOUT_THREAD: Final = frozenset({"counters"})
"""Tables of events without a thread: in millions of samples an empty column would cost its memory."""

DEVICE_KINDS: Final = ("kernel", "memcpy", "memset", "accelerator")
"""Kinds of device events; ``accelerator`` is a vendor's own that is none of the others."""

OPTIONAL: Final[dict[str, Columns]] = {
    "operators": {
        "external_id": "integer",
        "sequence": "integer",
        "forward_thread": "integer",
        "input_dims": "text",
        "input_types": "text",
        "input_strides": "text",
        "concrete_inputs": "text",
        "call_stack": "text",
        "module_hierarchy": "text",
        **_COLLECTIVE,
        "record_function_id": "integer",
        "event_index": "integer",
    },
    "python_functions": {
        "python_id": "integer",
        "python_parent_id": "integer",
        "module_id": "integer",
        "event_index": "integer",
    },
    "runtime_calls": {"correlation": "integer", "external_id": "integer", "callback_id": "integer"},
    "device_events": {
        "device": "integer",
        "stream": "integer",
        "correlation": "integer",
        "external_id": "integer",
        "bytes": "integer",
        "grid": "text",
        "block": "text",
        "registers_per_thread": "integer",
        "shared_memory_bytes": "integer",
        "blocks_per_sm": "float",
        "warps_per_sm": "float",
        "occupancy_percent": "float",
        "context": "integer",
        "queued": "integer",
        "memory_bandwidth_gb_per_s": "float",
        **_COLLECTIVE,
    },
    "annotations": {
        "external_id": "integer",
        "input_dims": "text",
        "input_types": "text",
        **_COLLECTIVE,
        "event_index": "integer",
    },
    "device_annotations": {"external_id": "integer"},
    "memory_events": {
        "device_type": "integer",
        "device": "integer",
        "address": "integer",
        "bytes": "integer",
        "total_allocated": "integer",
        "total_reserved": "integer",
        "event_index": "integer",
    },
    "counters": {"device": "integer", "unit": "text"},
    "flows": {"id": "integer", "binding_point": "text"},
    "synchronizations": {
        "device": "integer",
        "stream": "integer",
        "correlation": "integer",
        "wait_on_stream": "integer",
        "wait_on_correlation": "integer",
        "event_id": "integer",
    },
    "other_events": {},
}
"""Optional columns of each table; those that a format lacks are left out, and read as unknown."""
