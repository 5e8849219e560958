"""Peaks from memory events of traces, and their holders, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from whystall.analysis.memory_results import MemoryHolder, MemoryPeak
from whystall.diagnosis.finding import Finding
from whystall.report import tables
from whystall.report.charts import curve
from whystall.report.document import Document, Drawing, Heading, Part, Points, grid, wrapped_entry
from whystall.report.format import duration, plural, ratio, share, size
from whystall.report.memory_text import bars
from whystall.report.names import clean, middle_cut

_LONGEST_NAME: Final = 200
_WORTH_TELLING: Final = 0.2
_NARROWEST: Final = 30
_BEFORE: Final = "A memory snapshot shows who held the memory that existed before."


def peaks_document(peaks: Sequence[MemoryPeak], width: int, findings: Sequence[Finding] = ()) -> Document:
    """Each allocator's peak, who held it, and its course as bars in a line of ``width``."""
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
    most = max(peaks, key=lambda peak: peak.peak_allocated_bytes or 0)
    headline = f"{_name(most)}: at most {size(most.peak_allocated_bytes)} allocated{_largest(most)}."
    parts: list[Part] = [
        Heading("Peaks", text=wrapped_entry(headline, width)[2:]),
        grid("Peaks by allocator", labels, rows),
        *_courses(peaks, min(width, 80)),
        *(part for peak in peaks for part in _holders(peak, width)),
        *([Points(tuple(map(_finding, findings)))] if findings else []),
        f"Traces tell of {plural(len(peaks), 'allocator')}. {_BEFORE}",
    ]
    return Document("memory", headline, tuple(parts))


def _largest(peak: MemoryPeak) -> str:
    """The largest part, where one is known."""
    first = next(iter(peak.held), None)
    part = None if first is None else ratio(first.bytes, peak.peak_allocated_bytes or 0)
    if first is None or first.kind == "unknown" or part is None or part < _WORTH_TELLING:
        return ""
    return f", {share(part)} of it {first.kind}"


def _courses(peaks: Sequence[MemoryPeak], width: int) -> Iterator[Part]:
    for peak in (one for one in peaks if one.curve):
        at_ns, most = max(peak.curve, key=lambda point: point[1])
        drawn = curve(peak)
        text = f"{_name(peak)}: {size(most)} at {duration(at_ns)}\n{bars(peak.curve, width)}"
        yield Drawing("curves", () if drawn is None else (drawn,), text)


def _holders(peak: MemoryPeak, width: int) -> Iterator[Part]:
    """Memory at the peak by kind, and by module, function and operator; or the reason why it is unknown."""
    whole = peak.peak_allocated_bytes or 0
    if peak.held:
        kinds = (
            (one.kind, tables.size(one.bytes), tables.share(ratio(one.bytes, whole)), tables.count(one.count or None))
            for one in peak.held
        )
        yield grid(f"Held at the peak, {_name(peak)}", ("held at the peak", "bytes", "share", "allocations"), kinds)
    if peak.holders:
        room = max(width - 52, _NARROWEST)
        rows = (
            (
                middle_cut(_place(one), room),
                one.kind,
                tables.size(one.bytes),
                tables.share(ratio(one.bytes, whole)),
                tables.count(one.count),
            )
            for one in peak.holders
        )
        left = [f"{plural(peak.holders_omitted, 'smaller holder')} left out"] if peak.holders_omitted else []
        labels = ("made in", "category", "bytes", "share", "count")
        yield grid(f"By module and function, {_name(peak)}", labels, rows, notes=[*left, *_lacking(peak)], first="name")
    if peak.holders_unknown_because is not None:
        yield f"{_name(peak)}: who held it is not known: {peak.holders_unknown_because}."


def _lacking(peak: MemoryPeak) -> Iterator[str]:
    """Facts that the trace lacks for every holder."""
    modules = any(one.module is not None for one in peak.holders)
    functions = any(one.function is not None for one in peak.holders)
    if not modules or not functions:
        lacks = " and ".join(name for name, there in (("modules", modules), ("functions", functions)) if not there)
        yield f"the trace names no {lacks} here: with_stack=True records them (whystall run does)"


def _place(one: MemoryHolder) -> str:
    """Where it was made: the known ones of module, function and operator."""
    known = [clean(name, _LONGEST_NAME) for name in (one.module, one.function, one.operator) if name is not None]
    return " ".join(known) or "(outside of operators)"


def _finding(one: Finding) -> str:
    told = [
        f"{size(int(fact.value))} {clean(fact.what, _LONGEST_NAME)}" for fact in one.evidence if fact.unit == "bytes"
    ]
    remedy = "" if one.remedy is None else f" Remedy: {clean(one.remedy.text, 4 * _LONGEST_NAME)}"
    return f"{one.id}: {', '.join(told)}.{remedy}"


def _name(peak: MemoryPeak) -> str:
    return f"rank {peak.rank}, {peak.device_type} {peak.device}"
