"""Intended arrivals: JSON lines with ``timestamp`` (s), ``input_length``, ``output_length`` and ``hash_ids``.

The format of Mooncake's traces, read by ``vllm bench serve --dataset-name timed_trace``; a hash stands for 16 tokens.
"""

from __future__ import annotations

from typing import Final

import msgspec

from whystall.json_text import NotJsonError, parse_json
from whystall.serving.readers.reader import Source, nanoseconds
from whystall.serving.records import Arrival, Part

_MOST: Final = 500_000
_FIELDS: Final = (b'"timestamp"', b'"input_length"', b'"output_length"')


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


class TimedTrace:
    """Reads a file of intended arrivals."""

    kind = "arrivals"

    def recognizes(self, head: bytes) -> bool:
        """Whether the first line has the three fields."""
        first = head.lstrip().partition(b"\n")[0]
        return first.startswith(b"{") and all(field in first for field in _FIELDS)

    def read(self, source: Source) -> Part:
        """The arrivals in the file's order, which is the client's."""
        rows: list[Arrival] = []
        bad = 0
        for line in source.lines():
            if not line.strip():
                continue
            try:
                row = parse_json(line, _Row)
            except NotJsonError:
                bad += 1
                continue
            sizes = max(row.input_length, 0), max(row.output_length, 0)
            rows.append(Arrival(nanoseconds(row.timestamp), *sizes, tuple(row.hash_ids)))
            if len(rows) >= _MOST:
                source.notes.append(f"only the first {_MOST:,} arrivals are read")
                break
        if bad:
            source.notes.append(f"lines left out, since they are no arrival: {bad:,}")
        return Part(self.kind, arrivals=tuple(rows))
