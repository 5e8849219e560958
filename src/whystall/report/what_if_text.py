"""The answer of a replay with other settings as a document: each metric measured, replayed as it was, and then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.report.document import Document, Grid, Lines, Part, grid
from whystall.report.format import UNKNOWN, count, duration, quantity, share
from whystall.report.names import clean
from whystall.report.tables import Cell
from whystall.serving.predictions import Metric, Rate, SelfCheck
from whystall.serving.what_if import Answer

_LONGEST_NOTE: Final = 300
_MOST_NOTES: Final = 16


def what_if_document(found: Answer) -> Document:
    """The document."""
    headline = clean(found.headline, 1000)
    parts: list[Part] = [headline]
    if found.check is not None:
        parts += [_table(found, found.check), Lines(tuple(_below(found, found.check)))]
    if found.notes:
        parts.append(Lines(tuple(clean(note, _LONGEST_NOTE) for note in found.notes[:_MOST_NOTES]), marked=True))
    return Document("serve", headline, tuple(part for part in parts if part != Lines(())))


def _table(found: Answer, check: SelfCheck) -> Grid:
    rows = [_row(one, found, check) for one in check.metrics]
    if check.rate is not None:
        rows.append(_rate(check.rate, None if found.prediction is None else found.prediction.rate))
    head = f"{count(found.requests)} requests, measured, replayed as it was, and replayed with {found.change}"
    return grid(head, ("Metric", "measured", "replayed", "off", "then", "interval", ""), rows)


def _row(own: Metric, found: Answer, check: SelfCheck) -> tuple[Cell | str, ...]:
    """A metric's row; where the replay misses its own run too far, without an answer."""
    head = (
        f"{own.name.upper()} p{own.percentile}",
        Cell(duration(own.before_ns), own.before_ns),
        Cell(duration(own.after_ns), own.after_ns),
        Cell(share(own.error), own.error),
    )
    if found.prediction is None or not check.trusts(own):
        return (*head, Cell(UNKNOWN), Cell(UNKNOWN), Cell(UNKNOWN))
    then = found.prediction.metric(own.name, own.percentile)
    return (
        *head,
        Cell(duration(then.after_ns), then.after_ns),
        Cell(f"{duration(then.low_ns)} to {duration(then.high_ns)}"),
        Cell(then.verdict),
    )


def _rate(own: Rate, then: Rate | None) -> tuple[Cell | str, ...]:
    head = (
        "output tokens/s",
        Cell(quantity(own.before), own.before),
        Cell(quantity(own.after), own.after),
        Cell(share(abs(own.after - own.before) / own.before)),
    )
    if then is None:
        return (*head, Cell(UNKNOWN), Cell(UNKNOWN), Cell(UNKNOWN))
    return (
        *head,
        Cell(quantity(then.after), then.after),
        Cell(f"{quantity(then.low)} to {quantity(then.high)}"),
        Cell(""),
    )


def _below(found: Answer, check: SelfCheck) -> Iterator[str]:
    prediction = found.prediction
    if prediction is None:
        return
    if any(prediction.preemptions):
        before, after = prediction.preemptions
        yield f"Preemptions: {count(before)} as it is, {count(after)} then."
    if not all(check.trusts(one) for one in check.metrics):
        yield "A metric that the replay misses by more than 25 % in its own run has no answer."
