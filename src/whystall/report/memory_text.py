"""Results of a memory snapshot in words: the peak and its holders, idle memory, growth, and shortage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from whystall.memory.results import (
    AtEnd,
    Category,
    DeviceMemory,
    Holder,
    MemoryFinding,
    MemoryReport,
    OutOfMemory,
    RanksTogether,
    SnapshotComparison,
)
from whystall.report import tables
from whystall.report.charts import memory_curve
from whystall.report.document import Document, Drawing, Grid, Heading, Lines, Part, Points, grid, wrapped_entry
from whystall.report.format import UNKNOWN, count, duration, plural, ratio, share, size
from whystall.report.memory_batch_text import told_room
from whystall.report.memory_ranks_text import told_together
from whystall.report.names import clean, middle_cut
from whystall.report.tables import Cell

_BARS: Final = "▁▂▃▄▅▆▇█"
_MOST_ROWS: Final = 15
_MOST_OUT_OF_MEMORY: Final = 3
_LONGEST_NAME: Final = 200
_NARROWEST: Final = 30
_MOST_GROWING: Final = 3
_MOST_NAMED: Final = 4
_WORTH_TELLING: Final = 0.2
_OUTSIDERS: Final = "CUDA's context, libraries' workspaces, NCCL's buffers"
_OUTSIDE: Final = "Snapshots leave out memory outside torch's allocator (CUDA's context, NCCL, other libraries)."
_WITH_SIZE: Final = " Where memory ran out, --device-memory SIZE shows how much that was."


def memory_document(reports: Sequence[MemoryReport], width: int, joint: RanksTogether | None = None) -> Document:
    """Results of snapshots, for lines of ``width``; with several, a summary and a line each come first."""
    parts: list[Part] = [_overview(reports)] if len(reports) > 1 else []
    if joint is not None:
        said = told_together(joint)
        parts.insert(0, Heading("The ranks together", said, wrapped_entry(said, width)[2:]))
    for report in reports:
        parts += _file(report, width)
    parts.append(_OUTSIDE + (_WITH_SIZE if any(map(_lacks_size, reports)) else ""))
    fullest = max(reports, key=lambda one: max((device.peak.allocated_bytes for device in one.devices), default=0))
    head = _headline(fullest, alone=len(reports) == 1) if joint is None else told_together(joint)
    return Document("memory", head, tuple(parts))


def _lacks_size(report: MemoryReport) -> bool:
    """Whether the device's capacity would explain a shortage further."""
    outs = [one for device in report.devices for one in device.out_of_memory]
    return any(one.outside_bytes is None and one.device_free_bytes and one.reserved_bytes is not None for one in outs)


def _headline(report: MemoryReport, *, alone: bool) -> str:
    said = summarize(report)
    return said if alone or not report.devices else f"{_name(report.file)}: {said}"


def summarize(report: MemoryReport) -> str:
    """The sentence on top of a file's part."""
    if not report.devices:
        return f"{_name(report.file)} holds neither segments nor events of any device."
    device = max(report.devices, key=lambda one: one.peak.allocated_bytes)
    out = device.out_of_memory
    head = f"{device.device}: "
    if out:
        return head + _shortage(out[-1])
    peak = device.peak
    if peak.event is None:
        return f"{head}{size(peak.allocated_bytes)} allocated when the snapshot was made{_most(device)}."
    where = f", in the {peak.phase}{_pass(peak.phase)}" if peak.phase else ""
    of_step = f" of recorded step {peak.step}" if peak.step else ""
    return f"{head}at most {size(peak.allocated_bytes)} allocated{where}{of_step}{_most(device)}."


def _shortage(out: OutOfMemory) -> str:
    """The request that found no room, and the holders of memory."""
    asked = f"{size(out.asked_bytes)} were asked for and not found"
    if out.site is not None:
        asked = f"{_line(out.site, out.function)} asked for {size(out.asked_bytes)} and found no room"
    free = f", {size(out.device_free_bytes)} free on the device" if out.device_free_bytes is not None else ""
    first = next(iter(out.held), None)
    part = None if first is None else ratio(first.bytes, out.allocated_bytes)
    most = (
        ""
        if first is None or part is None or first.category is Category.UNKNOWN
        else f", {share(part)} of it {first.category}"
    )
    return f"{asked}, with {size(out.allocated_bytes)} allocated{most}{free}."


def _pass(phase: str) -> str:
    return " pass" if phase in {"forward", "backward"} else "'s step" if phase == "optimizer" else ""


def _most(device: DeviceMemory) -> str:
    """The largest part, where one is known."""
    first = next(iter(device.peak.held), None)
    part = None if first is None else ratio(first.bytes, device.peak.allocated_bytes)
    if first is None or first.category is Category.UNKNOWN or part is None or part < _WORTH_TELLING:
        return ""
    return f", {share(part)} of it {first.category}"


def _overview(reports: Sequence[MemoryReport]) -> Grid:
    rows = [(report.file, device) for report in reports for device in report.devices]
    rows.sort(key=lambda row: -row[1].peak.allocated_bytes)
    cells = (
        (
            _name(file),
            device.device,
            tables.size(device.peak.allocated_bytes),
            tables.size(device.peak.reserved_bytes),
            f"{size(device.out_of_memory[-1].asked_bytes)} asked for" if device.out_of_memory else UNKNOWN,
        )
        for file, device in rows
    )
    labels = ("file", "device", "peak allocated", "peak reserved", "out of memory")
    return grid("Peaks by file, the highest first", labels, cells, first="name")


def _file(report: MemoryReport, width: int) -> Iterator[Part]:
    said = summarize(report)
    head = f"{_name(report.file)}: {said}" if report.devices else said
    yield Heading(_name(report.file), said, wrapped_entry(head, width)[2:])
    for device in report.devices:
        yield from _device(device, width, alone=len(report.devices) == 1)
    notes = [*report.warnings, *([f"settings of the allocator: {report.settings}"] if report.settings else [])]
    if notes:
        yield Points(tuple(notes), wrapped=False)


def _device(device: DeviceMemory, width: int, *, alone: bool) -> Iterator[Part]:
    peak = device.peak
    if not alone:
        yield Heading(device.device, text=device.device, level=3)
    if device.out_of_memory:
        yield Points(tuple(_out_of_memory(device.out_of_memory[-1])))
    if when := tuple(_when(device)):
        yield Lines(when)
    if device.curve:
        drawn = memory_curve(device.device, device.curve, lambda events: plural(events, "event"))
        text = f"allocated {bars(device.curve, width - 11)}\n{'':10}0 to {size(peak.allocated_bytes)}, by events"
        yield Drawing("curves", () if drawn is None else (drawn,), text)
    if peak.held:
        yield _categories(device)
        yield _holders(peak.holders, peak.holders_left_out, peak.allocated_bytes, width)
    if device.findings:
        yield Points(tuple(map(_finding, device.findings)))
    yield Points(tuple(_facts(device)))


def _finding(one: MemoryFinding) -> str:
    saves = f", saves up to {size(one.saves_bytes)}" if one.saves_bytes is not None else ""
    return f"{one.id}: {one.says}. Remedy: {clean(one.remedy, 4 * _LONGEST_NAME)}{saves} ({one.known_by})"


def _when(device: DeviceMemory) -> Iterator[str]:
    peak = device.peak
    if peak.event is None:
        return
    reserved = f", {size(peak.reserved_bytes)} reserved" if peak.reserved_bytes is not None else ""
    after = f", {duration(peak.at_ns)} after the record began" if peak.at_ns is not None else ""
    at = f"at event {count(peak.event + 1)} of {count(device.events)}{after}"
    yield f"peak: {size(peak.allocated_bytes)} allocated{reserved}, {at}"
    if peak.phase_known_by is not None:
        yield f"phase: {peak.phase}, known by {peak.phase_known_by}"
    if len(device.phases) > 1:
        yield f"most in each phase: {', '.join(f'{one.phase} {size(one.allocated_bytes)}' for one in device.phases)}"
    if peak.annotations:
        yield f"inside: {' > '.join(middle_cut(clean(name, _LONGEST_NAME), 40) for name in peak.annotations)}"


def _categories(device: DeviceMemory) -> Grid:
    peak = device.peak
    rows = (
        (
            held.category,
            tables.size(held.bytes),
            tables.share(ratio(held.bytes, peak.allocated_bytes)),
            tables.count(held.count),
        )
        for held in peak.held
    )
    first = "held at the peak" if peak.event is not None else "held"
    return grid("By category", (first, "bytes", "share", "allocations"), rows)


def _holders(holders: Sequence[Holder], left_out: int, whole: int, width: int) -> Grid:
    room = max(width - 55, _NARROWEST)
    rows = []
    for holder in holders:
        where = _row_name(holder, room)
        part = tables.share(ratio(holder.bytes, whole))
        held = tables.size(holder.bytes)
        rows.append((where, holder.category, held, part, tables.count(holder.count)))
    found = grid("By line of code", ("by line", "category", "bytes", "share", "count"), rows, first="name")
    return _first_rows(found, left_out, f" (--json has {len(holders)})")


def _first_rows(found: Grid, left_out: int, text_more: str = "") -> Grid:
    """The table with its number of missing rows; a terminal shows the first rows."""
    table = replace(found.table, omitted=left_out)
    return replace(found, table=table, text_rows=_MOST_ROWS, text_more=text_more)


def _line(site: str | None, function: str | None) -> str:
    if site is None:
        return "(no frame)"
    return f"{clean(site, _LONGEST_NAME)} {clean(function or '', _LONGEST_NAME)}".rstrip()


def _row_name(holder: Holder, room: int) -> str:
    """A label, or a line with its file's name, number and function, at the cost of folders."""
    if holder.label is not None:
        return middle_cut(clean(holder.label, _LONGEST_NAME), room)
    line = _line(holder.site, holder.function)
    if holder.within is not None and holder.site is not None:
        place = _without_folders(clean(holder.site, _LONGEST_NAME), room // 2)
        left = max(room - len(place) - len(" > "), 1)
        within = _without_folders(clean(holder.within, _LONGEST_NAME), left)
        line = f"{place} > {within if len(within) <= left else within.partition(' ')[0]}"
    return _fit(line, room)


def _fit(line: str, room: int) -> str:
    short = _without_folders(line, room)
    return short if len(short) <= room else f"{short[: room - 1]}…"


def _without_folders(line: str, room: int) -> str:
    """The line without its first folders until it fits, if that is enough."""
    while len(line) > room and "/" in line.removeprefix("…/"):
        line = f"…/{line.removeprefix('…/').partition('/')[2]}"
    return line.removeprefix("…/") if len(line) > room else line


def _facts(device: DeviceMemory) -> Iterator[str]:
    """Further facts, a sentence each."""
    if device.at_end is not None:
        yield _at_end(device.at_end)
    if device.events:
        gone = f"{size(device.unmatched_free_bytes)} ({plural(device.unmatched_frees, 'allocation')})"
        freed = f", of which {gone} were freed in it" if device.unmatched_frees else ""
        yield f"before the record began: {size(device.baseline_bytes)}{freed}"
        yield from _given_back(device)
        yield from _growth(device)
    if device.batch is not None:
        yield told_room(device.batch)
    yield from (_ran_out(one) for one in device.out_of_memory[-_MOST_OUT_OF_MEMORY:-1])
    yield from device.notes


def _at_end(end: AtEnd) -> str:
    parts = [f"allocated {size(end.allocated_bytes)}"]
    parts += [f"freed but still used by a stream {size(end.awaiting_bytes)}"] if end.awaiting_bytes else []
    parts += [f"fragmented (free beside what is held) {size(end.fragmented_bytes)}"]
    parts += [f"cached (free as a whole) {size(end.cached_bytes)}"]
    told = f"reserved when the snapshot was made: {size(end.reserved_bytes)} in {plural(end.segments, 'segment')}"
    free = f"largest free block {size(end.largest_free_bytes)}"
    return f"{told} = {' + '.join(parts)}; {free}; rounding takes {size(end.rounding_bytes)} of what is allocated"


def _given_back(device: DeviceMemory) -> Iterator[str]:
    if not device.given_back:
        yield "no segment was given back to the device: no retry, no empty_cache"
        return
    pressed = device.given_back_under_pressure
    told = f", {plural(pressed, 'time')} to ask again at once: the device had refused (retries)" if pressed else ""
    yield (
        f"segments were given back {plural(device.given_back, 'time')} ({size(device.given_back_bytes)}){told}"
        + ("" if pressed else ": by empty_cache, or by the collection of garbage")
    )


def _growth(device: DeviceMemory) -> Iterator[str]:
    growth = device.growth
    if growth is None:
        yield f"growth from step to step: unknown, since {device.no_growth_because}"
        return
    told = f"grows by {size(growth.bytes_per_step)} in each of {plural(growth.steps, 'step')}"
    sites = [
        f"{size(site.bytes_per_step)} from {_line(site.site, site.function)}" for site in growth.sites[:_MOST_GROWING]
    ]
    yield f"{told} (steps known by {growth.known_by}){': ' if sites else ''}{', '.join(sites)}"


def _out_of_memory(one: OutOfMemory) -> Iterator[str]:
    """The last shortage, its holders of memory, and the remedies."""
    yield _ran_out(one)
    if one.holders:
        lines = [holder for holder in one.holders if holder.site is not None][:_MOST_NAMED]
        named = ", ".join(f"{_line(holder.site, holder.function)} {size(holder.bytes)}" for holder in lines)
        parts = ", ".join(f"{held.category} {size(held.bytes)}" for held in one.held[:_MOST_NAMED])
        yield f"memory is held by {parts}{'; most by ' + named if named else ''}"
    for rescue in one.rescues:
        enough = (
            "" if rescue.enough is None else ", which is enough" if rescue.enough else ", which is not enough alone"
        )
        frees = f"frees up to {size(rescue.frees_bytes)}{enough} ({rescue.known_by})"
        yield f"remedy: {clean(rescue.remedy, 4 * _LONGEST_NAME)}; {frees}"
    if one.segments is not None:
        yield one.segments


def _ran_out(one: OutOfMemory) -> str:
    reserved = f", {size(one.reserved_bytes)} reserved" if one.reserved_bytes is not None else ""
    free = f", {size(one.device_free_bytes)} free on the device" if one.device_free_bytes is not None else ""
    free += f": {size(one.missing_bytes)} too little" if one.missing_bytes is not None else ""
    where = f" at {_line(one.site, one.function)}" if one.site is not None else ""
    held = f"{size(one.allocated_bytes)} allocated{reserved}{free}"
    return f"out of memory: {size(one.asked_bytes)} asked for{where}, {held}{_outside(one)}"


def _outside(one: OutOfMemory) -> str:
    """Device memory outside this allocator, and its likely owners."""
    if one.outside_bytes is None:
        return ""
    return f"; {size(one.outside_bytes)} lay outside torch's allocator: {_OUTSIDERS}, or other processes"


def bars(curve: Sequence[tuple[int, int]], width: int) -> str:
    """The course as a row of bars, each the highest of its stretch."""
    columns_ = min(max(width, 10), len(curve))
    edges = [at * len(curve) // columns_ for at in range(columns_ + 1)]
    peaks = [max(held for _, held in curve[begin:end]) for begin, end in pairwise(edges)]
    top = max(*peaks, 1) if peaks else 1
    return "".join(_BARS[min(max(peak, 0) * len(_BARS) // top, len(_BARS) - 1)] for peak in peaks)


def comparison_document(found: Sequence[SnapshotComparison], width: int) -> Document:
    """Change of each line's memory at the peak, the largest first."""
    parts = [part for one in found for part in _compared(one, width)]
    if not parts:
        none = "The two snapshots have no device in common."
        return Document("memory --against", none, (none,))
    most = max(found, key=lambda one: abs(one.after_peak_bytes - one.before_peak_bytes))
    return Document("memory --against", _said(most), tuple(parts))


def _said(one: SnapshotComparison) -> str:
    change = one.after_peak_bytes - one.before_peak_bytes
    said = "the same" if change == 0 else f"{size(abs(change))} {'more' if change > 0 else 'less'}"
    peaks = (f"{size(held)} at the peak of {_name(file)}" for held, file in
             ((one.before_peak_bytes, one.before), (one.after_peak_bytes, one.after)))  # fmt: skip
    return f"{one.device}: {', '.join(peaks)}: {said}"


def _compared(one: SnapshotComparison, width: int) -> Iterator[Part]:
    yield Heading(one.device, _said(one), wrapped_entry(_said(one), width)[2:])
    same = f"{size(one.unchanged_bytes)} are held by lines that did not change"
    if not one.changes:
        yield Lines(("Every line holds the same.", same))
        return
    room = max(width - 60, _NARROWEST)
    rows = (
        (
            _fit(_line(row.site, row.function), room),
            row.category,
            tables.size(row.before_bytes),
            tables.size(row.after_bytes),
            _more(row.after_bytes - row.before_bytes),
        )
        for row in one.changes
    )
    labels = ("by line", "category", "before", "after", "change")
    yield _first_rows(grid("Changes by line of code", labels, rows, notes=[same], first="name"), one.changes_left_out)


def _more(n_bytes: int) -> Cell:
    return Cell(f"{'+' if n_bytes > 0 else '-'}{size(abs(n_bytes))}", n_bytes)


def _name(file: str) -> str:
    return middle_cut(clean(file, _LONGEST_NAME), 60)
