"""A sweep of collectives as text: times and bandwidths by size, the fits, and what changed since an earlier sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from whystall.hardware.accelerators import Accelerator
from whystall.probe.comm.against import Held
from whystall.probe.comm.results import CommProbe, Fit, Measured
from whystall.report.format import UNKNOWN, duration, rate, share, size
from whystall.report.probe_text import columns
from whystall.vocabulary.collectives import link_share


def render_sweep(found: CommProbe, row: Accelerator | None, held: Held | None = None) -> str:
    """The sweep as text; ``row`` is the table's for this device, ``held`` how it compares with an earlier one."""
    over = "over loopback" if found.network == "loopback" else "over the job's network"
    groups = f", in groups by {found.split} that measure at the same time (rates are of a group)" if found.split else ""
    head = (
        f"{found.ranks} ranks on {found.backend} {over}{groups}; {found.device}; measured on {found.measured_on} with "
        f"PyTorch {found.torch}"
    )
    parts = [head, *_tables(found, row), *_fits(found)]
    parts += [f"{one.collective} was not measured: {one.because}" for one in found.skipped]
    return "\n\n".join(parts + ([] if held is None else [_held(held)])) + "\n"


def _tables(found: CommProbe, row: Accelerator | None) -> Iterator[str]:
    link = None if row is None or row.link_gb_per_s is None else row.link_gb_per_s * 1e9
    for kind in dict.fromkeys(one.collective for one in found.results):
        lines = [[kind, "time", "four fifths of them", "processes", "algorithm", "bus", "of the link"]]
        notes: list[str] = []
        own = [one for one in found.results if one.collective == kind]
        lines += [[*_cells(one), _part(one, link, notes)] for one in own]
        yield "\n".join([columns(lines), *dict.fromkeys(notes)])


def _cells(one: Measured) -> list[str]:
    return [
        size(one.bytes),
        duration(one.time_ns),
        f"{duration(one.low_ns)} to {duration(one.high_ns)}",
        f"{duration(min(one.process_ns))} to {duration(max(one.process_ns))}",
        rate(one.algorithm_bytes_per_s, "B/s"),
        rate(one.bus_bytes_per_s, "B/s"),
    ]


def _part(one: Measured, link: float | None, notes: list[str]) -> str:
    if link is None:
        return UNKNOWN
    reached = link_share(one.collective, one.algorithm_bytes_per_s, one.ranks, link)
    if reached.note is not None:
        notes.append(f"{size(one.bytes)}: {reached.note}")
    return share(reached.share)


def _fits(found: CommProbe) -> Iterator[str]:
    if not found.fits:
        return
    lines = [["time = latency + size / bandwidth", "latency", "algorithm", "bus", "R²", "farthest off"]]
    lines += [_fit(one) for one in found.fits if one.unknown_because is None]
    unknown = [f"{one.collective}: no fit, {one.unknown_because}" for one in found.fits if one.unknown_because]
    yield "\n".join([*([columns(lines)] if len(lines) > 1 else []), *unknown])


def _fit(one: Fit) -> list[str]:
    worst = max(one.residuals, key=lambda each: abs(each.share))
    return [
        one.collective,
        duration(round(one.latency_ns or 0)),
        rate(one.bytes_per_s, "B/s"),
        rate(one.bus_bytes_per_s, "B/s"),
        UNKNOWN if one.r2 is None else f"{one.r2:.3f}",
        f"{100 * worst.share:+.0f} % at {size(worst.bytes)}",
    ]


def _held(held: Held) -> str:
    changed = [one for one in held.rows if one.judgement != "same"]
    if not changed:
        lines = [f"against the earlier sweep: none of {len(held.rows)} rows differs by more than both scatter"]
    else:
        lines = [f"against the earlier sweep {len(changed)} of {len(held.rows)} rows differ by more than both scatter:"]
        table = [["", "size", "before", "now", "times"]]
        for one in changed:
            before, now = duration(one.before_ns), duration(one.now_ns)
            table.append([f"{one.collective} {one.judgement}", size(one.bytes), before, now, f"{one.times:.2f}"])
        lines.append(columns(table))
    return "\n".join([*lines, *_notes(held.notes)])


def _notes(notes: Iterable[str]) -> Iterator[str]:
    yield from (f"not the same: {note}" for note in notes)
