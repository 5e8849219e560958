"""A search over settings in words: the trials, the winner, and how to keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from whystall.report import tables
from whystall.report.document import Code, Document, Grid, Lines, Part, Row, grid
from whystall.report.format import UNKNOWN, duration, plural
from whystall.report.tables import Cell
from whystall.verify.tune.results import Losses, Trial, Tuning

_NO_COMMAND = "whystall tune prints the command to run; no file holds it, since its arguments may be secret."


_LOSSES: Mapping[Losses, str] = {
    "agree": "losses agree step by step",
    "agree on average": "losses agree on average (steps draw other random numbers)",
    "differ": "losses differ",
    "not compared": "losses were not compared",
}


def tuning_document(found: Tuning, command: str | None, lines: Sequence[str]) -> Document:
    """The search; ``command`` and ``lines`` are for keeping the winner.

    A command may carry secrets: a file is made without it.
    """
    verdict = _verdict(found)
    parts: list[Part] = [verdict]
    if found.trials:
        parts.append(_table(found.trials))
    if found.left_out:
        parts.append(Lines(tuple(f"not tried: {one.name}, {one.because}" for one in found.left_out)))
    parts.append(
        f"{plural(len(found.trials), 'trial')}, {plural(found.runs, 'run')}; runs of the same settings differ by up to "
        f"{found.noise:.3f}; ended since {found.ended_because}"
    )
    if found.settings and command is not None:
        parts.append(Code("to keep it:", (command, *lines)))
    elif found.settings:
        parts += [Code("to keep it, lines to change:", tuple(lines))] if lines else []
        parts.append(_NO_COMMAND)
    return Document("tune", verdict, tuple(parts))


def _verdict(found: Tuning) -> str:
    confirmed = found.confirmed
    if not found.settings or confirmed is None or confirmed.speedup is None:
        step = duration(round(found.step_s * 1e9))
        return f"Nothing to gain: no setting made steps of {step} faster beyond the noise."
    interval = confirmed.interval
    bounds = "" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})"
    settings = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    return f"{confirmed.speedup:.2f} times as fast{bounds} with {settings}; {_LOSSES[confirmed.losses]}."


def _table(trials: Sequence[Trial]) -> Grid:
    notes = [f"{one.name}={one.value}: {one.because}" for one in trials if one.because is not None]
    rows: list[Row] = [(f"{one.name}={one.value}", *_cells(one), one.verdict) for one in trials]
    labels = ("setting", "before", "after", "times as fast", "pairs", ("", "verdict"))
    return grid("Trials, each against the best so far", labels, rows, notes=notes, first="name")


def _cells(one: Trial) -> tuple[Cell, ...]:
    pairs = tables.identifier(len(one.after_s))
    if one.speedup is None or not one.before_s or not one.after_s:
        return (Cell(UNKNOWN), Cell(UNKNOWN), Cell(UNKNOWN), pairs)
    bounds = "" if one.interval is None else f" ({one.interval.low:.2f} to {one.interval.high:.2f})"
    before, after = (tables.duration(round(median(times) * 1e9)) for times in (one.before_s, one.after_s))
    return (before, after, Cell(f"{one.speedup:.3f}{bounds}", one.speedup), pairs)
