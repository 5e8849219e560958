"""A comparison as a page: the verdict, both ledgers on one scale, and the changes in tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from whystall.diagnosis.comparison import Comparison
from whystall.diagnosis.sides import Side
from whystall.diagnosis.time_changes import Change
from whystall.report import tables
from whystall.report.comparison import changes_by_kind, delta_words, gain_words, name_of
from whystall.report.document import Document, Drawing, Grid, Heading, Lines, Part, grid
from whystall.report.format import duration, plural
from whystall.report.names import clean
from whystall.report.overview import Segment, segments_of
from whystall.report.tables import Cell, Kind
from whystall.report.vocabulary import PART

_ROWS = 100
_LONGEST_FULL = 400
_LABELS = ("per step", "base", "candidate", "change")
_CAUSES = ("cause", "change", "worth", "what it is")


@dataclass(frozen=True, slots=True)
class LedgerOf:
    """The ledger of one side as a bar, with its label."""

    label: str
    segments: tuple[Segment, ...]


def comparison_document(comparison: Comparison) -> Document:
    """The comparison for a page."""
    return Document("compare", comparison.summary, tuple(_parts(comparison)))


def _parts(comparison: Comparison) -> Iterator[Part]:
    if comparison.warnings:
        yield Lines(tuple(comparison.warnings), marked=True)
    if comparison.causes:
        rows = (
            (row.id, row.change, Cell(gain_words(row), max(row.base_gain or 0, row.candidate_gain or 0)), row.title)
            for row in comparison.causes
        )
        yield Heading("Causes")
        yield grid("Causes worth removing in one of the runs, or in both", _CAUSES, rows, first="name")
    if comparison.ledger:
        yield Heading("Ledger")
        yield Drawing("ledgers", _ledgers(comparison))
        yield _changes(comparison.ledger, comparable=not comparison.incomparable)
    yield from _counts(comparison)
    for heading, changes, more in changes_by_kind(comparison, _ROWS):
        if heading != "Ledger":
            yield Heading(heading)
            yield _changes(changes, more, comparable=not comparison.incomparable)


def _ledgers(comparison: Comparison) -> tuple[LedgerOf, ...]:
    """Both ledgers on one scale: the time that the shorter step saves is left empty."""
    sides = (
        ("Base", comparison.base, {row.name: row.base_ns or 0 for row in comparison.ledger}),
        ("Candidate", comparison.candidate, {row.name: row.candidate_ns or 0 for row in comparison.ledger}),
    )
    longest = max(sum(parts.values()) for _, _, parts in sides)
    return tuple(LedgerOf(_side(word, side), segments_of(parts, longest)) for word, side, parts in sides)


def _side(word: str, side: Side) -> str:
    step = "" if side.step_ns is None else f": {duration(side.step_ns)} a step, {plural(side.steps, 'step')}"
    return f"{word}, {clean(side.name, 120)}{step}"


def _counts(comparison: Comparison) -> Iterator[Part]:
    rows = [
        (
            row.name.replace("_", " "),
            tables.count(row.base),
            tables.count(row.candidate),
            Cell(f"{row.candidate - row.base:+,}", row.candidate - row.base),
        )
        for row in comparison.counts
        if row.certain
    ]
    if rows:
        yield Heading("Counts")
        yield grid("Counts per step that changed", _LABELS, rows)


def _name(row: Change) -> Cell:
    """The name, in full on demand; of a part of the ledger with its colour."""
    if row.kind == "ledger":
        return Cell(name_of(row), part=row.name if row.name in PART else None)
    short, full = name_of(row), clean(row.name, _LONGEST_FULL)
    return Cell(short, full=None if full == short else full)


def _changes(changes: Sequence[Change], more: int = 0, *, comparable: bool) -> Grid:
    rows = [
        (
            _name(row),
            tables.duration(row.base_ns),
            tables.duration(row.candidate_ns),
            Cell(delta_words(row, comparable=comparable), row.delta_ns),
        )
        for row in changes
    ]
    kind: Kind = "text" if changes[0].kind == "ledger" else "name"
    found = grid("The largest change first", _LABELS, rows, first=kind)
    return replace(found, table=replace(found.table, omitted=more))
