"""The answer of a replay with other settings as a document: each metric measured, replayed as it was, and then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.report.document import Document, Grid, Lines, Part, grid
from whystall.report.format import UNKNOWN, count, duration, quantity, share
from whystall.report.names import clean
from whystall.report.tables import Cell
from whystall.serving.predictions import TRUSTED, Metric, Rate, SelfCheck
from whystall.serving.what_if import Answer

_LONGEST_NOTE: Final = 300
_MOST_NOTES: Final = 16
_WITHOUT_ANSWER: Final = (Cell(UNKNOWN),) * 4


def what_if_document(found: Answer) -> Document:
    """The document."""
    headline = clean(found.headline, 1000)
    parts: list[Part] = [headline]
    if found.check is not None:
        parts += [_table(found, found.check), Lines(tuple(_below(found, found.check)))]
    if found.notes:
        parts.append(Lines(tuple(clean(note, _LONGEST_NOTE) for note in found.notes[:_MOST_NOTES]), marked=True))
    return Document("serve", headline, tuple(parts))


def _table(found: Answer, check: SelfCheck) -> Grid:
    rows = [_row(one, found, check) for one in check.metrics]
    if check.rate is not None:
        rows.append(_rate(check.rate, None if found.prediction is None else found.prediction.rate))
    head = f"{count(found.requests)} requests: measured, replayed as the run was, and predicted without and with"
    labels = ("Metric", "measured", "replayed", "as it is", "then", "interval", "")
    return grid(f"{head} {found.change}", labels, rows)


def _row(own: Metric, found: Answer, check: SelfCheck) -> tuple[Cell | str, ...]:
    """A metric's row; where the replay misses its own run too far, without an answer."""
    head = (f"{own.name.upper()} p{own.percentile}", _time(own.before_ns), _time(own.after_ns))
    if found.prediction is None or not check.trusts(own):
        return (*head, *_WITHOUT_ANSWER)
    then = found.prediction.metric(own.name, own.percentile)
    interval = Cell(f"{duration(then.low_ns)} to {duration(then.high_ns)}")
    return (*head, _time(then.before_ns), _time(then.after_ns), interval, Cell(then.verdict))


def _time(value: int) -> Cell:
    return Cell(duration(value), value)


def _rate(own: Rate, then: Rate | None) -> tuple[Cell | str, ...]:
    head = ("tokens/s", _amount(own.before), _amount(own.after))
    if then is None:
        return (*head, *_WITHOUT_ANSWER)
    interval = Cell(f"{quantity(then.low)} to {quantity(then.high)}")
    return (*head, _amount(then.before), _amount(then.after), interval, Cell(""))


def _amount(value: float) -> Cell:
    return Cell(quantity(value), value)


def _below(found: Answer, check: SelfCheck) -> Iterator[str]:
    yield _self_check(check)
    prediction = found.prediction
    if prediction is None:
        return
    if any(prediction.preemptions):
        before, after = prediction.preemptions
        yield f"Preemptions: {count(before)} as it is, {count(after)} then."
    if len(prediction.metrics) < len(check.metrics) or prediction.rate is None:
        yield f"A metric that the replay misses by more than {share(TRUSTED)} in its own run has no answer."


def _self_check(check: SelfCheck) -> str:
    """The largest distance of the replay of the same run from its measurement."""
    median, tail = check.worst(50), check.worst(99)
    return f"Self-check: the replay of the same run is off by up to {share(median)} at p50 and {share(tail)} at p99."
