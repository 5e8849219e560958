"""A sweep of collectives in words: times and bandwidths by size, the fits, and the changes since an earlier sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from whystall.hardware.accelerators import Accelerator
from whystall.probe.comm.against import Held
from whystall.probe.comm.results import CommProbe, Fit, Measured
from whystall.report import tables
from whystall.report.comm_chart import size_chart
from whystall.report.document import Document, Drawing, Heading, Lines, Part, grid
from whystall.report.format import UNKNOWN, plural, rate, size
from whystall.report.tables import Cell
from whystall.vocabulary.collectives import link_share

_LABELS = ("time", "four fifths of them", "processes", "algorithm", "bus", "of the link")


def sweep_document(found: CommProbe, row: Accelerator | None, held: Held | None = None) -> Document:
    """The sweep; ``row`` is the table's for this device, ``held`` how it compares with an earlier one."""
    over = "over loopback" if found.network == "loopback" else "over the job's network"
    groups = f", in groups by {found.split} that measure at the same time (rates are of a group)" if found.split else ""
    head = (
        f"{found.ranks} ranks on {found.backend} {over}{groups}; {found.device}; measured on {found.measured_on} with "
        f"PyTorch {found.torch}"
    )
    parts: list[Part] = [head, *_tables(found, row), *_fits(found)]
    parts += [f"{one.collective} was not measured: {one.because}" for one in found.skipped]
    parts += [] if held is None else _held(held)
    return Document("probe comm", _fastest(found) or head, tuple(parts))


def _fastest(found: CommProbe) -> str:
    """The most that the bus carried."""
    best = max(found.results, key=lambda one: one.bus_bytes_per_s, default=None)
    if best is None:
        return ""
    reached = rate(best.bus_bytes_per_s, "B/s")
    ranks = plural(found.ranks, "rank")
    return f"{ranks} on {found.backend} reach {reached} on the bus, with {best.collective} of {size(best.bytes)}."


def _tables(found: CommProbe, row: Accelerator | None) -> Iterator[Part]:
    link = None if row is None or row.link_gb_per_s is None else row.link_gb_per_s * 1e9
    for kind in dict.fromkeys(one.collective for one in found.results):
        notes: list[str] = []
        own = [one for one in found.results if one.collective == kind]
        cells = [(*_cells(one), _part(one, link, notes)) for one in own]
        yield Heading(kind)
        if len(own) > 1:
            yield Drawing("size_chart", size_chart(kind, own))
        yield grid("Time and bandwidth by size", (kind, *_LABELS), cells, notes=dict.fromkeys(notes))


def _cells(one: Measured) -> tuple[Cell, ...]:
    low, high = tables.duration(one.low_ns), tables.duration(one.high_ns)
    shortest, longest = tables.duration(min(one.process_ns)), tables.duration(max(one.process_ns))
    return (
        tables.size(one.bytes),
        tables.duration(one.time_ns),
        Cell(f"{low.text} to {high.text}", low.value),
        Cell(f"{shortest.text} to {longest.text}", shortest.value),
        tables.rate(one.algorithm_bytes_per_s, "B/s"),
        tables.rate(one.bus_bytes_per_s, "B/s"),
    )


def _part(one: Measured, link: float | None, notes: list[str]) -> Cell:
    if link is None:
        return Cell(UNKNOWN)
    reached = link_share(one.collective, one.algorithm_bytes_per_s, one.ranks, link)
    if reached.note is not None:
        notes.append(f"{size(one.bytes)}: {reached.note}")
    return tables.share(reached.share)


def _fits(found: CommProbe) -> Iterator[Part]:
    if not found.fits:
        return
    unknown = [f"{one.collective}: no fit, {one.unknown_because}" for one in found.fits if one.unknown_because]
    known = [_fit(one) for one in found.fits if one.unknown_because is None]
    labels = ("time = latency + size / bandwidth", "latency", "algorithm", "bus", "R²", "farthest off")
    yield Heading("Latency and bandwidth")
    yield grid("Fitted latency and bandwidth", labels, known, notes=unknown) if known else Lines(tuple(unknown))


def _fit(one: Fit) -> Sequence[Cell | str]:
    worst = max(one.residuals, key=lambda each: abs(each.share))
    return (
        one.collective,
        tables.duration(round(one.latency_ns or 0)),
        tables.rate(one.bytes_per_s, "B/s"),
        tables.rate(one.bus_bytes_per_s, "B/s"),
        Cell(UNKNOWN if one.r2 is None else f"{one.r2:.3f}", one.r2),
        Cell(f"{100 * worst.share:+.0f} % at {size(worst.bytes)}", worst.share),
    )


def _held(held: Held) -> Iterator[Part]:
    changed = [one for one in held.rows if one.judgement != "same"]
    notes = [f"not the same: {note}" for note in held.notes]
    yield Heading("Against the earlier sweep")
    if not changed:
        said = f"against the earlier sweep: none of {len(held.rows)} rows differs by more than both scatter"
        yield Lines((said, *notes))
        return
    said = f"against the earlier sweep {len(changed)} of {len(held.rows)} rows differ by more than both scatter:"
    rows = (
        (
            f"{one.collective} {one.judgement}",
            tables.size(one.bytes),
            tables.duration(one.before_ns),
            tables.duration(one.now_ns),
            Cell(f"{one.times:.2f}", one.times),
        )
        for one in changed
    )
    table = grid(said, (("", "collective"), "size", "before", "now", "times"), rows, notes=notes)
    yield replace(table, text_head=said)
