"""The peaks that memory events of traces tell of, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystall.analysis.results import MemoryPeak
from whystall.report import tables
from whystall.report.charts import curve
from whystall.report.document import Document, Drawing, Part, grid
from whystall.report.format import duration, plural, size
from whystall.report.memory_text import bars


def peaks_document(peaks: Sequence[MemoryPeak], width: int) -> Document:
    """Each allocator's peak, and its course as bars in a line of ``width``."""
    labels = ("allocator", "peak allocated", "peak reserved", "at the start", "at the end", "events")
    rows = (
        (
            _name(peak),
            tables.size(peak.peak_allocated_bytes),
            tables.size(peak.peak_reserved_bytes),
            tables.size(peak.allocated_start_bytes),
            tables.size(peak.allocated_end_bytes),
            tables.count(peak.events),
        )
        for peak in peaks
    )
    told = f"Traces tell totals of {plural(len(peaks), 'allocator')}, and nothing of the lines that asked."
    most = max(peaks, key=lambda peak: peak.peak_allocated_bytes or 0)
    headline = f"{_name(most)}: at most {size(most.peak_allocated_bytes)} allocated."
    parts = (grid("Peaks by allocator", labels, rows), *_courses(peaks, min(width, 80)), told)
    return Document("memory", headline, parts)


def _courses(peaks: Sequence[MemoryPeak], width: int) -> Iterator[Part]:
    for peak in (one for one in peaks if one.curve):
        at_ns, most = max(peak.curve, key=lambda point: point[1])
        drawn = curve(peak)
        text = f"{_name(peak)}: {size(most)} at {duration(at_ns)}\n{bars(peak.curve, width)}"
        yield Drawing("curves", () if drawn is None else (drawn,), text)


def _name(peak: MemoryPeak) -> str:
    return f"rank {peak.rank}, {peak.device_type} {peak.device}"
