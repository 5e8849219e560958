"""The plain ways from a trace to numpy columns: the standard library's json, and msgspec with typed structs.

    python read_json.py TRACE stdlib|msgspec

Both make the columns that any analysis needs (phase, category, name, process, thread, start, duration,
correlation, stream) and drop everything else. Prints {"cpu_s": ..., "events": ...}.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from peak import peak_bytes


class Arguments(msgspec.Struct):
    """The arguments that every analysis needs."""

    correlation: int | str = -1
    stream: int | str = -1


class Event(msgspec.Struct):
    """An event; what is not named here is skipped."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments | None = None


class Document(msgspec.Struct):
    """A trace."""

    traceEvents: list[Event]  # noqa: N815 - the file's own key


def text_of(trace: Path) -> bytes:
    """The whole JSON text."""
    data = trace.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def by_stdlib(trace: Path) -> int:
    """Dictionaries, then a loop."""
    events = json.loads(text_of(trace))["traceEvents"]
    columns: dict[str, list[Any]] = {
        key: [] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "corr", "stream")
    }
    for event in events:
        arguments = event.get("args") or {}
        for key in ("ph", "cat", "name", "pid", "tid"):
            columns[key].append(event.get(key))
        columns["ts"].append(float(event.get("ts", 0)))
        columns["dur"].append(float(event.get("dur", 0)))
        columns["corr"].append(arguments.get("correlation", -1))
        columns["stream"].append(arguments.get("stream", -1))
    np.array(columns["ts"]), np.array(columns["dur"])
    return len(events)


def by_msgspec(trace: Path) -> int:
    """Typed structs, then arrays."""
    events = msgspec.json.decode(text_of(trace), type=Document).traceEvents
    np.fromiter((event.ts for event in events), np.float64, len(events))
    np.fromiter((event.dur for event in events), np.float64, len(events))
    for key in ("ph", "cat", "name", "pid", "tid"):
        np.array([getattr(event, key) for event in events], dtype=object)
    return len(events)


def main() -> None:
    """The command line."""
    trace, way = Path(sys.argv[1]), sys.argv[2]
    started = time.process_time()
    events = {"stdlib": by_stdlib, "msgspec": by_msgspec}[way](trace)
    print(json.dumps({"cpu_s": time.process_time() - started, "peak_bytes": peak_bytes(), "events": events}))


if __name__ == "__main__":
    main()
