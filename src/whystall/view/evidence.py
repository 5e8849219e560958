"""A finding's evidence as a small trace: the recording around it, with whystall's rows above.

A file holds at most `MOST_BYTES` of text, so that it can be sent and opens at once, however large the recording is.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl
from isal import igzip

from whystall.analysis.excerpt import excerpt
from whystall.analysis.ledger_spans import ledger_spans
from whystall.diagnosis.finding import Finding
from whystall.errors import InputError
from whystall.report.names import clean
from whystall.report.perfetto import Track, first_ns, write_chrome_trace
from whystall.report.schema import Report
from whystall.report.vocabulary import PART
from whystall.trace.model import Trace
from whystall.view.places import Interval, Place, place_of, rank_of

MOST_BYTES: Final = 20_000_000
# Most halvings of a stretch that is too large: 2 ** 40 ns are 18 minutes.
_MOST_HALVINGS: Final = 40
# How much of a stretch that had to be shortened lies before the finding's begin.
_BEFORE: Final = 4
_MOST_STREAMS: Final = 2


@dataclass(frozen=True, slots=True)
class EvidenceTrace:
    """Chrome trace events as JSON, and the part to show: begin and end in ns, as the file counts them."""

    json: bytes
    window: Interval
    focus: Interval | None
    rows: tuple[str, ...]
    """The labels of whystall's own rows."""
    device: int
    streams: tuple[int, ...]
    """The device's busiest ones."""

    @property
    def gzipped(self) -> bytes:
        """The file for serving and writing."""
        packed: bytes = igzip.compress(self.json, mtime=0)  # the same bytes at any time
        return packed


def cut_from(report: Report, trace_of: Callable[[int], Trace]) -> Callable[[int | None], EvidenceTrace]:
    """A function that cuts the evidence of the report's finding at a place, or of a step, from its rank's trace.

    It raises `InputError` where no recording could show it.
    """

    def cut(number: int | None) -> EvidenceTrace:
        finding = None if number is None else report.findings[number]
        rank = rank_of(report, finding)
        if rank is None:
            raise InputError("no trace was recorded: there are samples of this run alone")
        trace = trace_of(rank)
        return evidence_trace(trace, place_of(report, finding, rank, trace), finding)

    return cut


def evidence_trace(
    trace: Trace, place: Place, finding: Finding | None = None, *, most_bytes: int = MOST_BYTES
) -> EvidenceTrace:
    """The recording at a place, with rows of whystall's own above it; shortened around the finding until it fits.

    Raises `InputError` where a single instant holds more text than a file may.
    """
    for window in _shorter_and_shorter(place):
        # A step more on either side, where there is one: a thread's state at the edges depends on their surroundings.
        length = window[1] - window[0]
        wide = excerpt(trace, (window[0] - length, window[1] + length))
        above = _tracks(wide, place, window, finding)
        cut = excerpt(wide, window)
        file = _Bounded(most_bytes)
        try:
            write_chrome_trace(cut, file, above=above)
        except _FullError:
            continue
        origin = first_ns(cut, above) or 0
        return EvidenceTrace(
            json=file.getvalue(),
            window=(max(window[0] - origin, 0), window[1] - origin),
            focus=None if place.focus is None else (place.focus[0] - origin, place.focus[1] - origin),
            rows=tuple(track.label for track in above),
            device=place.device,
            streams=_busiest(cut, place.device),
        )
    raise InputError(f"what was recorded at the finding is more than {most_bytes // 1_000_000} MB of text")


class _FullError(Exception):
    """More was written than a file may hold."""


class _Bounded(io.BytesIO):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: object) -> int:
        written = super().write(data)  # type: ignore[arg-type]
        if self.tell() > self._most:
            raise _FullError
        return written


def _shorter_and_shorter(place: Place) -> Iterator[Interval]:
    """The whole stretch, then half of it, and so on, each with the finding's begin in it."""
    begin, end = place.window
    yield begin, end
    at = place.focus[0] if place.focus else begin
    for halvings in range(1, _MOST_HALVINGS):
        length = max((end - begin) >> halvings, 1)
        first = min(max(at - length // _BEFORE, begin), max(end - length, begin))
        yield first, first + length
        if length == 1:
            return


def _tracks(trace: Trace, place: Place, window: Interval, finding: Finding | None) -> list[Track]:
    """The finding's intervals, then the ledger, its parts of idle time, and exposed communication."""
    spans = ledger_spans(trace, place.device, window)
    idle = pl.col("part").str.starts_with("idle_")
    named = spans.with_columns(name=pl.col("part").replace_strict({key: part.label for key, part in PART.items()}))
    rows = {
        "ledger": named.with_columns(name=pl.when(idle).then(pl.lit("Idle")).otherwise(pl.col("name"))),
        "idle by cause": named.filter(idle),
        "exposed communication": named.filter(pl.col("part") == "communication"),
    }
    if finding is not None and place.marks:
        marks = [(begin, end - begin, clean(finding.title, 200)) for begin, end in sorted(place.marks)]
        schema = {"ts_ns": pl.Int64, "duration_ns": pl.Int64, "name": pl.String}
        own = pl.DataFrame(marks, schema=schema, orient="row")
        near = (pl.col("ts_ns") < window[1]) & (pl.col("ts_ns") + pl.col("duration_ns") > window[0])
        rows = {f"finding {clean(finding.id, 80)}": own.filter(near), **rows}
    return [Track(label, slices) for label, slices in rows.items() if len(slices)]


def _busiest(trace: Trace, device: int) -> tuple[int, ...]:
    events = trace.device_events.filter(pl.col("device").fill_null(0) == device)
    by_time = events.group_by(pl.col("stream").fill_null(0)).agg(pl.col("duration_ns").sum())
    ordered = by_time.sort(["duration_ns", "stream"], descending=[True, False])
    return tuple(int(stream) for stream in ordered["stream"].head(_MOST_STREAMS).to_list())
