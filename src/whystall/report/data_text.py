"""A probed loader in words: the stages of a batch, samples per second by workers, bounds, and settings."""

from __future__ import annotations

from collections.abc import Iterator

from whystall.probe.data.results import DataProbe, Settings, Stages
from whystall.report import tables
from whystall.report.document import Document, Grid, Lines, Part, Row, grid
from whystall.report.format import duration, plural, rate, ratio, share, size
from whystall.report.tables import Cell

_UNIT = "samples/s"


def loader_document(found: DataProbe) -> Document:
    """The probe."""
    head = (
        f"{found.target}: {plural(found.samples_per_batch, 'sample')} a batch of {size(found.bytes_per_batch)}, "
        f"{plural(found.cores, 'core')}, workers by {found.start_method}; measured on {found.measured_on} with PyTorch "
        f"{found.torch}"
    )
    advice = _advice(found)
    parts: list[Part] = [head, _stages(found), Lines(tuple(_beside(found))), _workers(found), _bounds(found), advice]
    return Document("probe data", advice, (*parts, *found.notes))


def _stages(found: DataProbe) -> Grid:
    labels = ("a batch", "fetch: computing", "waiting", "collate", "send", "receive", "slowest of 100")
    places = {"worker": "in a worker"}
    rows: list[Row] = [(places.get(one.place, "without workers"), *_cells(one)) for one in found.stages]
    return grid("The stages of a batch", labels, rows)


def _cells(one: Stages) -> tuple[Cell, ...]:
    return (
        tables.duration(one.fetch_cpu_ns),
        tables.duration(one.fetch_wait_ns),
        tables.duration(one.collate_cpu_ns + one.collate_wait_ns),
        tables.duration(one.send_cpu_ns),
        tables.duration(one.receive_cpu_ns),
        Cell(f"{one.slowest_over_median:.1f} x the median", one.slowest_over_median),
    )


def _beside(found: DataProbe) -> Iterator[str]:
    if found.storage is None:
        yield f"without the page cache: not known, {found.storage_unknown_because}"
    else:
        files = f"{plural(found.storage.files, 'file')} of {size(found.storage.file_bytes)}"
        cached, uncached = duration(found.storage.cached_ns), duration(found.storage.uncached_ns)
        yield f"without the page cache a batch takes {uncached} instead of {cached} ({files})"
    if found.device is None:
        yield "pinning and copying: there is no GPU here"
    else:
        yield (
            f"pinning a batch takes {duration(found.device.pin_ns)}; copying it to {found.device.name} takes "
            f"{duration(found.device.copy_pinned_ns)} from pinned memory, "
            f"{duration(found.device.copy_pageable_ns)} from other"
        )


def _workers(found: DataProbe) -> Grid:
    labels = ("workers", "predicted", "measured", "without page cache", "a step waits", "first batch after")
    rows = (
        (
            tables.identifier(one.workers),
            tables.rate(one.samples_per_s, _UNIT),
            tables.rate(one.measured_samples_per_s, _UNIT),
            tables.rate(one.uncached_samples_per_s, _UNIT),
            tables.duration(one.wait_ns),
            tables.duration(one.start_ns),
        )
        for one in found.workers
    )
    return grid("Supply, by workers", labels, rows)


def _bounds(found: DataProbe) -> Grid:
    workers = plural(found.proposed.num_workers, "worker") if found.proposed.num_workers else "no workers"
    rows = [
        (one.resource, tables.rate(one.samples_per_s, _UNIT), "binds" if one.resource == found.binds else "")
        for one in found.bounds
        if one.samples_per_s is not None
    ]
    unknown = [f"{one.resource}: {one.unknown_because}" for one in found.bounds if one.samples_per_s is None]
    return grid(
        f"At most, with {workers}",
        ((f"at most, with {workers}", "resource"), ("", "samples per second"), ("", "which binds")),
        rows,
        notes=unknown,
    )


def _advice(found: DataProbe) -> str:
    now, proposed = found.now, found.proposed
    if found.nothing_to_gain:
        return f"Nothing to gain: {_why_nothing(found)}"
    sentences = [f"Set {_settings(proposed)}: {_supply(proposed)}, where {_settings(now)} gives {_supply(now)}"]
    if proposed.num_workers == 0:
        sentences.append("No workers are best: handing batches over costs more than making them")
    if found.step_ns is not None:
        sentences.append(f"With steps of {duration(found.step_ns)} that is {found.gain:.2f} times as fast")
    return ". ".join(sentences) + "."


def _why_nothing(found: DataProbe) -> str:
    now = found.now
    if found.step_ns is not None and now.wait_ns is not None:
        part = ratio(now.wait_ns, now.wait_ns + found.step_ns)
        return f"with {_settings(now)} a step of {duration(found.step_ns)} waits for {share(part)} of its time."
    best = "no workers are best" if now.num_workers == 0 else "no other number of workers supplies more"
    return f"with {_settings(now)} it supplies {rate(now.samples_per_s, _UNIT)}, and {best}."


def _settings(one: Settings) -> str:
    told = [f"num_workers={one.num_workers}"]
    if one.num_workers:
        told += [f"prefetch_factor={one.prefetch_factor}", f"persistent_workers={one.persistent_workers}"]
    if one.pin_memory:
        told.append("pin_memory=True")
    return ", ".join(told)


def _supply(one: Settings) -> str:
    waits = "" if one.wait_ns is None else f" and a step waits {duration(one.wait_ns)}"
    return f"{rate(one.samples_per_s, _UNIT)}{waits}"
