"""A comparison as text, Markdown, JSON and one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape as escape_html

import msgspec

from whystall.diagnosis.cause_changes import CauseChange
from whystall.diagnosis.comparison import Change, Comparison
from whystall.report import format as fmt
from whystall.report.markdown import escape
from whystall.report.names import clean
from whystall.report.vocabulary import PART

_TABLES: tuple[tuple[str, str], ...] = (
    ("ledger", "Ledger"),
    ("operators", "Operators"),
    ("kernels", "Kernels"),
    ("modules", "Modules"),
)
_WORDS = {"gone": "gone", "new": "new", "stays": "stays", "less": "less", "more": "more", "unknown": "?"}
_LONGEST_NAME = 60

Cells = tuple[str, str, str, str]


def render_comparison(comparison: Comparison, format_: str, *, rows: int = 10) -> str:
    """The comparison in ``terminal``, ``json``, ``markdown`` or ``html``. Raises ``ValueError`` for other formats."""
    renderers: dict[str, Callable[[Comparison, int], str]] = {
        "terminal": _terminal,
        "json": _json,
        "markdown": _markdown,
        "html": _html,
    }
    if format_ not in renderers:
        raise ValueError(f"unknown format {format_!r}: choose one of {', '.join(renderers)}")
    return renderers[format_](comparison, rows)


def _json(comparison: Comparison, _rows: int) -> str:
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1).decode() + "\n"


def _name(row: Change) -> str:
    return PART[row.name].label if row.kind == "ledger" and row.name in PART else clean(row.name, _LONGEST_NAME)


def _cells(row: Change) -> Cells:
    sign = "+" if row.delta_ns > 0 else ""
    delta = f"{sign}{fmt.duration(row.delta_ns)}{'' if row.beyond_noise else ' (noise)'}"
    return _name(row), fmt.duration(row.base_ns), fmt.duration(row.candidate_ns), delta


def _gain(row: CauseChange) -> str:
    gains = [f"{value:.2f}x" if value is not None else fmt.UNKNOWN for value in (row.base_gain, row.candidate_gain)]
    return {
        "gone": f"was worth {gains[0]}",
        "less": f"was worth {gains[0]}, now {gains[1]}: no longer named",
        "new": f"worth {gains[1]}",
        "more": f"was worth {gains[0]} and not named, now {gains[1]}",
        "stays": f"{gains[0]}, now {gains[1]}",
        "unknown": f"worth {gains[0] if row.base_gain is not None else gains[1]}; the other run lacks the signals",
    }[row.change]


def _tables(comparison: Comparison, rows: int) -> Iterator[tuple[str, Sequence[Change], int]]:
    for field, heading in _TABLES:
        changes: list[Change] = getattr(comparison, field)
        if changes:
            yield heading, changes[:rows], max(len(changes) - rows, 0)


def _counts(comparison: Comparison) -> list[Cells]:
    """What a step does more or less often, in cells; what is as before is left out."""
    return [
        (row.name.replace("_", " "), f"{row.base:,}", f"{row.candidate:,}", f"{row.candidate - row.base:+,}")
        for row in comparison.counts
        if row.certain
    ]


def _in_cells(comparison: Comparison, rows: int) -> Iterator[tuple[str, Sequence[Cells], int]]:
    if counts := _counts(comparison):
        yield "Counts", counts, 0
    for heading, changes, more in _tables(comparison, rows):
        yield heading, [_cells(row) for row in changes], more


def _terminal(comparison: Comparison, rows: int) -> str:
    lines = [comparison.summary, ""]
    lines += [f"! {clean(warning, 200)}" for warning in comparison.warnings]
    if comparison.causes:
        width = max(len(row.id) for row in comparison.causes)
        lines += ["CAUSES"]
        lines += [
            f"{_WORDS[row.change].ljust(5)} {row.id.ljust(width)}  {_gain(row)}  {clean(row.title, 80)}"
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
            f"| `{row.id}` {escape(row.title)} | {_WORDS[row.change]} | {_gain(row)} |" for row in comparison.causes
        ]
        lines += [""]
    for heading, table, more in _in_cells(comparison, rows):
        lines += [f"| {heading}, per step | base | candidate | change |", "|---|---:|---:|---:|"]
        lines += [f"| {escape(cells[0])} | {cells[1]} | {cells[2]} | {cells[3]} |" for cells in table]
        lines += ["", f"… {more} more", ""] if more else [""]
    return "\n".join(lines).rstrip() + "\n"


_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64em; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.25rem; } h2 { font-size: 1rem; margin: 1.6rem 0 .3rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .6rem; white-space: nowrap;
  border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 9em; }
.less { color: #1a7f37; } .more { color: #c2410c; } .noise { opacity: .6; }
@media (prefers-color-scheme: dark) { .less { color: #6fdd8b; } .more { color: #ff9d5c; } }
"""


_HEAD = "<thead><tr><th>name</th><th>base</th><th>candidate</th><th>change</th></tr></thead>"


def _html(comparison: Comparison, rows: int) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>whystall: comparison</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape_html(comparison.summary)}</h1>",
        f"<p>Base: {escape_html(clean(comparison.base.name, 120))}.</p>",
        f"<p>Candidate: {escape_html(clean(comparison.candidate.name, 120))}.</p>",
    ]
    parts += [f"<p>{escape_html(clean(warning, 200))}</p>" for warning in comparison.warnings]
    if comparison.causes:
        body = "".join(
            f"<tr><td><code>{escape_html(row.id)}</code> {escape_html(row.title)}</td><td>{_WORDS[row.change]}</td>"
            f"<td>{escape_html(_gain(row))}</td></tr>"
            for row in comparison.causes
        )
        parts.append(f"<h2>Causes</h2><div class='scroll'><table><tbody>{body}</tbody></table></div>")
    if counts := _counts(comparison):
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in counts)
        parts.append(f"<h2>Counts, per step</h2><div class='scroll'><table>{_HEAD}<tbody>{body}</tbody></table></div>")
    for heading, changes, more in _tables(comparison, rows * 4):
        body = "".join(map(_html_row, changes))
        parts.append(
            f"<h2>{heading}, per step</h2><div class='scroll'><table>{_HEAD}<tbody>{body}</tbody></table></div>"
        )
        parts += [f"<p>… {more} more</p>"] if more else []
    return "".join(parts) + "</body></html>\n"


def _html_row(row: Change) -> str:
    kind = "noise" if not row.beyond_noise else "less" if row.delta_ns < 0 else "more"
    cells = [escape_html(cell) for cell in _cells(row)]
    return f"<tr><td>{cells[0]}</td><td>{cells[1]}</td><td>{cells[2]}</td><td class='{kind}'>{cells[3]}</td></tr>"
