"""The counts that ``whystall serve run`` keeps of ``/metrics``: JSON lines, one for each reading that differs.

Running and waiting requests of a reading stand beside those of the log's stats lines, which come every ten seconds.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from whystall.json_text import NotJsonError, parse_json
from whystall.serving.readers.reader import Source
from whystall.serving.records import Metrics, Part, QueueReadings

__all__ = ["HEAD", "Counts", "MetricsSeries"]

_SCHEMA: Final = "whystall.serving-series/1"
HEAD: Final = b'{"schema":"%s"}' % _SCHEMA.encode()
"""The first line."""
_MOST: Final = 500_000
_LARGEST: Final = 1_000_000_000


class Counts(msgspec.Struct, frozen=True):
    """The counts of a reading at a time (seconds since 1970); ``cache`` is the share of blocks in use."""

    at_s: float
    running: int = 0
    waiting: int = 0
    cache: float = 0.0
    preemptions: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0

    @classmethod
    def of(cls, at_s: float, metrics: Metrics) -> Counts:
        """The counts of a whole reading."""
        values = metrics.values

        def whole(name: str) -> int:
            return int(values.get(name, 0.0))

        return cls(
            round(at_s, 3),
            whole("num_requests_running"),
            whole("num_requests_waiting"),
            round(values.get("kv_cache_usage_perc", 0.0), 4),
            whole("num_preemptions"),
            whole("request_success"),
            whole("prompt_tokens"),
            whole("generation_tokens"),
        )

    def same(self, other: Counts) -> bool:
        """Whether nothing but the time differs."""
        return msgspec.structs.replace(self, at_s=other.at_s) == other


class MetricsSeries:
    """Reads such a series."""

    kind = "series of /metrics"

    def recognizes(self, head: bytes) -> bool:
        """Whether the first line is that of a series."""
        return head.startswith(HEAD)

    def read(self, source: Source) -> Part:
        """Running and waiting requests and the cache of each reading. A line that was cut is left out."""
        found: list[tuple[int, int, int]] = []
        for line in source.lines():
            if line.startswith(HEAD) or len(found) >= _MOST:
                continue
            try:
                counts = parse_json(line, Counts)
            except NotJsonError:
                continue
            cache = round(min(max(counts.cache, 0.0), 1.0) * 1000)
            found.append((_count(counts.running), _count(counts.waiting), cache))
        running, waiting, cached = (np.array([row[place] for row in found], dtype=np.int64) for place in range(3))
        readings = QueueReadings(running, waiting, cached) if found else None
        return Part(self.kind, waiting=tuple(row[:2] for row in found), readings=readings)


def _count(value: int) -> int:
    return min(max(value, 0), _LARGEST)
