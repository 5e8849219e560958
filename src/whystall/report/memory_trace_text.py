"""The peaks that memory events of traces tell of, as text."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.analysis.results import MemoryPeak
from whystall.report.format import count, duration, plural, size
from whystall.report.memory_text import bars
from whystall.report.probe_text import columns


def render_peaks(peaks: Sequence[MemoryPeak], width: int) -> str:
    """The text for a terminal: each allocator's peak, and its course as bars."""
    lines = [["allocator", "peak allocated", "peak reserved", "at the start", "at the end", "events"]]
    for peak in peaks:
        told = (
            peak.peak_allocated_bytes,
            peak.peak_reserved_bytes,
            peak.allocated_start_bytes,
            peak.allocated_end_bytes,
        )
        lines += [[_name(peak), *map(size, told), count(peak.events)]]
    parts = [columns(lines)]
    for peak in (one for one in peaks if one.curve):
        at_ns, most = max(peak.curve, key=lambda point: point[1])
        parts.append(f"{_name(peak)}: {size(most)} at {duration(at_ns)}\n{bars(peak.curve, min(width, 80))}")
    parts.append(f"Traces tell totals of {plural(len(peaks), 'allocator')}, and nothing of the lines that asked.")
    return "\n\n".join(parts) + "\n"


def _name(peak: MemoryPeak) -> str:
    return f"rank {peak.rank}, {peak.device_type} {peak.device}"
