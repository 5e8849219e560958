"""Measured batches: content and speed of each, with the knee marked, and the conclusion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from whystall.model.prediction.results import Prediction
from whystall.probe.batch.results import Attempt, BatchRun, Probed
from whystall.probe.batch.search import NEAR_BEST
from whystall.report import tables
from whystall.report.document import Part, Row, grid
from whystall.report.format import count, plural, rate, share, size
from whystall.report.names import clean
from whystall.report.prediction_text import accumulation_text
from whystall.report.tables import Cell

_BAR = 24


def probed_parts(found: Prediction, probed: Probed, width: int) -> Iterator[Part]:
    """Results of probes, for lines of ``width`` columns, tables apart."""
    if probed.because is not None:
        yield fill(f"Nothing was run: {clean(probed.because)}.", width)
        return
    head = "Not one of the batches that were really run fits."
    if probed.largest is not None:
        head = f"Really run, the largest batch that fits is {count(probed.largest)}."
    yield fill(f"{head} {plural(len(probed.attempts), 'probe')}, {_processes(found.request.ranks)}:", width)
    yield _attempts(probed.attempts, width)
    yield from _curve(probed.curve, probed.knee)
    yield fill(_advice(found, probed), width)


def _processes(ranks: int) -> str:
    if ranks == 1:
        return "each a process of its own"
    return f"each a process for each of {ranks} ranks; the fullest and the slowest of them count"


def _attempts(attempts: Sequence[Attempt], width: int) -> Part:
    rows: list[Row] = []
    for one in attempts:
        held = one.held_bytes
        error = "-" if held is None else _error(one.predicted_bytes / held - 1)
        amount = "-" if held is None else size(held)
        rows.append([count(one.batch), tables.size(one.predicted_bytes), Cell(amount, held), error, one.outcome])
    said = [fill(f"{count(one.batch)}: {clean(one.said)}", width) for one in attempts if one.said]
    return grid("Batches that were run", ("batch", "predicted", "held at most", "error", "outcome"), rows, notes=said)


def _error(error: float) -> str:
    told = share(abs(error))
    return told if told == share(0.0) else f"{'-' if error < 0 else '+'}{told}"


def _curve(curve: Sequence[BatchRun], knee: int | None) -> Iterator[Part]:
    if not curve:
        return
    best = max(one.samples_per_s for one in curve)
    rows: list[Row] = []
    for one in curve:
        bar = "█" * max(round(one.samples_per_s / best * _BAR), 1)
        times = [tables.duration(value) for value in (one.step_ns, one.fastest_ns, one.slowest_ns)]
        marked = f"{bar} knee" if one.batch == knee else bar
        speed = Cell(rate(one.samples_per_s, "").strip(), one.samples_per_s)
        rows.append([count(one.batch), tables.size(one.held_bytes), *times, speed, marked.ljust(_BAR + 5)])
    labels = ("batch", "held at most", "a step takes", "from", "to", "samples/s", ("", "of the highest"))
    yield grid("Throughput by batch", labels, rows)


def _advice(found: Prediction, probed: Probed) -> str:
    """The meaning of the knee, and how a smaller batch makes the same step."""
    runs = {one.batch: one for one in probed.curve}
    largest = probed.largest
    if largest is None or probed.knee is None:
        return ""
    knee = runs[probed.knee]
    best = max(probed.curve, key=lambda one: one.samples_per_s)
    text = (
        f"The knee is at {count(knee.batch)}: the smallest batch that was run with at least {share(NEAR_BEST)} of the "
        f"highest throughput ({share(knee.samples_per_s / best.samples_per_s)} of that with {count(best.batch)}), in "
        f"{size(knee.held_bytes)}."
    )
    if found.request.effective_batch is not None or knee.batch == largest:
        return text
    batches = largest // knee.batch
    more = accumulation_text(batches, knee.batch, "", batches * knee.batch)
    waiting = max(one.held.get("gradients", 0) for one in found.phases)
    return f"{text} {more} The gradients that wait meanwhile take up to {size(waiting)} more."
