"""A comparison as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from whystall.diagnosis.cause_changes import CauseChange
from whystall.diagnosis.comparison import Comparison
from whystall.diagnosis.time_changes import Change
from whystall.report import format as fmt
from whystall.report.markdown import escape
from whystall.report.names import clean
from whystall.report.vocabulary import PART

_TABLES: tuple[tuple[str, str], ...] = (
    ("ledger", "Ledger"),
    ("operators", "Operators"),
    ("kernels", "Kernels"),
    ("modules", "Modules"),
    ("job", "Whole job, once"),
)
_WORDS = {"gone": "gone", "new": "new", "stays": "stays", "less": "less", "more": "more", "unknown": "?"}
_LONGEST_NAME = 60

Cells = tuple[str, str, str, str]


def render_comparison(comparison: Comparison, format_: str, *, rows: int = 10) -> str:
    """The comparison in ``terminal``, ``json`` or ``markdown``. Raises ``ValueError`` for other formats."""
    renderers: dict[str, Callable[[Comparison, int], str]] = {
        "terminal": _terminal,
        "json": _json,
        "markdown": _markdown,
    }
    if format_ not in renderers:
        raise ValueError(f"unknown format {format_!r}: choose one of {', '.join(renderers)}")
    return renderers[format_](comparison, rows)


def _json(comparison: Comparison, _rows: int) -> str:
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1).decode() + "\n"


def name_of(row: Change) -> str:
    """Name of a row, safe to show."""
    return PART[row.name].label if row.kind == "ledger" and row.name in PART else clean(row.name, _LONGEST_NAME)


def _cells(row: Change, comparable: bool) -> Cells:
    change = delta_words(row, comparable=comparable)
    return name_of(row), fmt.duration(row.base_ns), fmt.duration(row.candidate_ns), change


def delta_words(row: Change, *, comparable: bool) -> str:
    """By how much a row changed, and whether that may be noise."""
    if not comparable:
        return "not comparable"
    sign = "+" if row.delta_ns > 0 else ""
    return f"{sign}{fmt.duration(row.delta_ns)}{'' if row.beyond_noise else ' (noise)'}"


def gain_words(row: CauseChange) -> str:
    """Gain of removing a cause, before and now."""
    if row.base_gain is None and row.candidate_gain is None and row.change != "unknown":
        return ""  # a cause outside of steps
    gains = [f"{value:.2f}x" if value is not None else fmt.UNKNOWN for value in (row.base_gain, row.candidate_gain)]
    return {
        "gone": f"was worth {gains[0]}",
        "less": f"was worth {gains[0]}, now {gains[1]}: no longer named",
        "new": f"worth {gains[1]}",
        "more": f"was worth {gains[0]} and not named, now {gains[1]}",
        "stays": f"{gains[0]}, now {gains[1]}",
        "unknown": f"worth {gains[0] if row.base_gain is not None else gains[1]}; the other run lacks the signals",
    }[row.change]


def changes_by_kind(comparison: Comparison, rows: int) -> Iterator[tuple[str, Sequence[Change], int]]:
    """The headings, the first rows under each, and how many more there are."""
    for field, heading in _TABLES:
        changes: list[Change] = getattr(comparison, field)
        if changes:
            yield heading, changes[:rows], max(len(changes) - rows, 0)


def _counts(comparison: Comparison) -> list[Cells]:
    """Counts per step that changed, in cells."""
    return [
        (row.name.replace("_", " "), f"{row.base:,}", f"{row.candidate:,}", f"{row.candidate - row.base:+,}")
        for row in comparison.counts
        if row.certain
    ]


def _in_cells(comparison: Comparison, rows: int) -> Iterator[tuple[str, Sequence[Cells], int]]:
    if counts := _counts(comparison):
        yield "Counts", counts, 0
    for heading, changes, more in changes_by_kind(comparison, rows):
        yield heading, [_cells(row, not comparison.incomparable) for row in changes], more


def _terminal(comparison: Comparison, rows: int) -> str:
    lines = [comparison.summary, ""]
    lines += [f"! {clean(warning, 200)}" for warning in comparison.warnings]
    if comparison.causes:
        width = max(len(row.id) for row in comparison.causes)
        lines += ["CAUSES"]
        lines += [
            f"{_WORDS[row.change].ljust(5)} {row.id.ljust(width)}  {gain_words(row)}  {clean(row.title, 80)}"
            for row in comparison.causes
        ]
        lines += [""]
    for heading, cells, more in _in_cells(comparison, rows):
        table = [("per step", "base", "candidate", "change"), *cells]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        lines += [heading.upper()]
        lines += [
            f"{row[0].ljust(widths[0])}  " + "  ".join(row[column].rjust(widths[column]) for column in (1, 2, 3))
            for row in table
        ]
        lines += [f"… {more} more", ""] if more else [""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown(comparison: Comparison, rows: int) -> str:
    lines = [f"**{escape(comparison.summary)}**", ""]
    lines += [f"> {escape(clean(warning, 200))}" for warning in comparison.warnings]
    lines += [""] if comparison.warnings else []
    if comparison.causes:
        lines += ["| cause | | worth |", "|---|---|---|"]
        lines += [
            f"| `{row.id}` {escape(row.title)} | {_WORDS[row.change]} | {gain_words(row)} |"
            for row in comparison.causes
        ]
        lines += [""]
    for heading, table, more in _in_cells(comparison, rows):
        lines += [f"| {heading}, per step | base | candidate | change |", "|---|---:|---:|---:|"]
        lines += [f"| {escape(cells[0])} | {cells[1]} | {cells[2]} | {cells[3]} |" for cells in table]
        lines += ["", f"… {more} more", ""] if more else [""]
    return "\n".join(lines).rstrip() + "\n"
