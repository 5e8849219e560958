"""A trace as a speedscope file: one flame chart per thread and stream, for https://www.speedscope.app and its kin.

Holds operators, Python frames and runtime calls of each thread, nested as they were recorded, its annotations apart
(they may outlast the function that began them), and the events of each stream; nothing of the original's metadata.
Times are nanoseconds from the first event. They are exact, except that an event ends at the latest with its parent: a
flame chart knows only nesting.
"""

from __future__ import annotations

import json
import re
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from whystall.report.perfetto import compressed
from whystall.trace.columns import codes, distinct, rows_by_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl
    from numpy.typing import NDArray

    from whystall.trace.model import Trace

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
# In the order of the one numbering that `Trace.host_order` has.
_HOST_TABLES: Final = ("operators", "annotations", "python_functions", "runtime_calls")
_FRAME: Final = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")


def write_speedscope(trace: Trace, stream: IO[bytes], *, compress: bool = False) -> None:
    """Writes ``trace`` to ``stream`` as JSON, gzipped if ``compress``; the same trace gives the same bytes."""
    with compressed(stream, compress=compress) as out:
        for chunk in _chunks(trace):
            out.write(chunk.encode("utf-8", "replace"))


class _Rows:
    """Events of one or several tables, one below the other: ``name`` numbers ``names``."""

    def __init__(self, tables: list[pl.DataFrame]) -> None:
        self.names: list[str] = []
        name = []
        for table in tables:
            name.append(codes(table["name"]).astype(np.int64) + len(self.names))
            self.names += distinct(table["name"])
        self.name = np.concatenate(name)
        self.start, lasts = (
            np.concatenate([table[column].to_numpy() for table in tables]) for column in ("ts_ns", "duration_ns")
        )
        self.end = self.start + lasts


def _chunks(trace: Trace) -> Iterator[str]:
    host = _Rows([getattr(trace, table) for table in _HOST_TABLES])
    device = _Rows([trace.device_events])
    origin = min((int(rows.start.min()) for rows in (host, device) if len(rows.start)), default=0)
    yield f'{{"$schema":{json.dumps(SCHEMA)},"exporter":"whystall","name":{json.dumps(trace.name)},"profiles":['
    between = "\n"
    for label, rows, chosen, first_frame in _charts(trace, host, device):
        begin, end = int(rows.start[chosen].min()) - origin, int(rows.end[chosen].max()) - origin
        head = {"type": "evented", "name": label, "unit": "nanoseconds", "startValue": begin, "endValue": end}
        yield between + json.dumps(head)[:-1] + ',"events":['
        yield ",".join(_events(rows, chosen, origin, first_frame))
        yield "]}"
        between = ",\n"
    frames = ",\n".join(map(_frame, (*host.names, *device.names)))
    yield f'\n],"shared":{{"frames":[\n{frames}\n]}}}}\n'


def _charts(trace: Trace, host: _Rows, device: _Rows) -> Iterator[tuple[str, _Rows, NDArray[np.intp], int]]:
    """Each chart's name, rows and first frame; rows in order of start, of equal starts the longest first."""
    tables = [getattr(trace, table) for table in _HOST_TABLES]
    thread = np.concatenate([table["thread"].to_numpy() for table in tables]).astype(np.int64)
    annotation = np.repeat([name == "annotations" for name in _HOST_TABLES], [len(table) for table in tables])
    order = trace.host_order.astype(np.intp)
    for number, at in rows_by_value((thread * 2 + annotation)[order]).items():
        _, tid, name = trace.threads.row(number // 2)
        yield f"{name or f'thread {tid}'}{': annotations' if number % 2 else ''}", host, order[at], 0
    events = trace.device_events
    place = np.stack([events[column].to_numpy().astype(np.int64) for column in ("device", "stream")])
    places, at_place = np.unique(place, axis=1, return_inverse=True)
    for number, chosen in rows_by_value(at_place.ravel()).items():
        label = f"device {places[0, number]} stream {places[1, number]}"
        yield label, device, chosen[np.lexsort((-device.end[chosen], device.start[chosen]))], len(host.names)


def _events(rows: _Rows, chosen: NDArray[np.intp], origin: int, first_frame: int) -> Iterator[str]:
    """Openings and closings, properly nested."""
    open_: list[tuple[int, int]] = []
    columns = (rows.start[chosen] - origin, rows.end[chosen] - origin, rows.name[chosen] + first_frame)
    for start, end, frame in zip(*(column.tolist() for column in columns), strict=True):
        while open_ and open_[-1][0] <= start:
            at, closing = open_.pop()
            yield f'{{"type":"C","frame":{closing},"at":{at}}}'
        open_.append((min(end, open_[-1][0]) if open_ else end, frame))
        yield f'{{"type":"O","frame":{frame},"at":{start}}}'
    while open_:
        at, closing = open_.pop()
        yield f'{{"type":"C","frame":{closing},"at":{at}}}'


def _frame(name: str) -> str:
    found = _FRAME.match(name)
    if found is None:
        return json.dumps({"name": name})
    return json.dumps({"name": found["function"], "file": found["file"], "line": int(found["line"])})
