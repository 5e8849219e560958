"""Grows a real trace to a wanted size: the same events again and again, with later times and fresh ids.

    python benchmarks/grow.py ../shared/traces/recsys-2rank-v100.json.gz grown.json --gigabytes 1

Names, arguments and layout are those of the original, so that a reader meets what it meets in the field.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

_TIME = re.compile(rb'"ts": (\d+)(\.\d+)?')
_DURATION = re.compile(rb'"dur": (\d+)')
_STEP = re.compile(rb"ProfilerStep#(\d+)")
_IDS = re.compile(
    rb'"(External id|external id|correlation|Ev Idx|Profiler Event Index|Sequence number|id|Python id|Python parent id'
    rb'|Record function id)": (\d+)'
)
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


def read(path: Path) -> bytes:
    """The trace's JSON text, gunzipped if need be."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def split(text: bytes) -> tuple[bytes, bytes, bytes]:
    """What precedes the events, the events, and what follows them."""
    opened = _EVENTS.search(text)
    if opened is None:
        raise SystemExit("no traceEvents in this file")
    closed = text.rindex(b"]")
    return text[: opened.end()], text[opened.end() : closed].rstrip().rstrip(b","), text[closed:]


def copies(events: bytes, gigabytes: float) -> Iterator[bytes]:
    """The events, again and again, until ``gigabytes`` are reached."""
    # events of the real recording only: a stray mark at time 0 must not stretch the shift
    times = sorted(int(match[1]) for match in _TIME.finditer(events))
    longest = max((int(match[1]) for match in _DURATION.finditer(events)), default=0)
    shift = times[-1] - times[len(times) // 100] + longest + 1000
    ids = max(int(match[2]) for match in _IDS.finditer(events)) + 1
    steps = max((int(match[1]) for match in _STEP.finditer(events)), default=0) + 1
    written = 0
    number = 0
    while written < gigabytes * 1e9:
        copy = _shifted(events, number * shift, number * ids, number * steps)
        yield copy if number == 0 else b"," + copy
        written += len(copy)
        number += 1


def _shifted(events: bytes, later: int, more: int, further: int) -> bytes:
    """The events with later times, larger ids and higher step numbers."""
    copy = _TIME.sub(lambda match: b'"ts": %d%s' % (int(match[1]) + later, match[2] or b""), events)
    copy = _IDS.sub(lambda match: b'"%s": %d' % (match[1], int(match[2]) + more), copy)
    return _STEP.sub(lambda match: b"ProfilerStep#%d" % (int(match[1]) + further), copy)


def grow(source: Path, target: Path, gigabytes: float) -> None:
    """Writes the grown trace."""
    before, events, after = split(read(source))
    with target.open("wb") as out:
        out.write(before)
        for copy in copies(events, gigabytes):
            out.write(copy)
        out.write(after)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    options = parser.parse_args()
    grow(options.source, options.target, options.gigabytes)


if __name__ == "__main__":
    main()
