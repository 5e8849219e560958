"""The report for a terminal: one screen (the verdict, the ledger, three findings); with ``verbose`` all of it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from whystall.report import format as fmt
from whystall.report import overview
from whystall.report.findings import CodeLine, Fact, FindingsView, FindingView, OtherRepair, findings_view, gain_words
from whystall.report.fitting import GAP, Fitted, fitted
from whystall.report.names import clean
from whystall.report.ranks import DeviceReport, RankReport, by_rank, device_title
from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.sections.registry import SECTIONS
from whystall.report.sections.section import Scope, Section, of_scope
from whystall.report.tables import Kind, Limits, Table

_NARROWEST = 40
_LONGEST_NAME = 1200
_MOST_ROWS = 200
_MOST_FINDINGS, _MOST_IN_ALL = 3, 50
_LEAST_TENTHS = 10
"""Parts of a ledger below one percent share a row of the short report."""
_MORE_COLUMNS = (
    "More columns than fit here are in a wider terminal, with --json, and in the page that -o report.html writes."
)


@dataclass(slots=True)
class _Page:
    """The drawing of the report, and whether it was too narrow for a column so far."""

    width: int
    verbose: bool
    sections: tuple[Section, ...]
    is_narrow: bool = False


def render_terminal(report: Report, options: Options | None = None) -> str:
    """The report as text at most ``options.width`` columns wide, with ANSI colours only if ``options.colour``."""
    options = options or Options()
    wide = max(options.width, _NARROWEST)
    output = io.StringIO()
    console = Console(
        file=output,
        width=wide,
        force_terminal=options.colour,
        color_system="truecolor" if options.colour else None,
        no_color=not options.colour,
        force_jupyter=False,
        force_interactive=False,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    for part in _parts(report, _Page(wide, options.verbose, (*SECTIONS, *options.more_sections))):
        console.print(part)
    return "\n".join(line.rstrip() for line in output.getvalue().split("\n")).rstrip("\n") + "\n"


def _parts(report: Report, page: _Page) -> Iterator[RenderableType]:
    ranks, view = by_rank(report), findings_view(report, _MOST_IN_ALL if page.verbose else _MOST_FINDINGS)
    # The short report's findings begin with the verdict's cause: its facts are not repeated on top.
    named = not page.verbose and any(one.id == report.verdict.cause for one in view.named[:1])
    yield Text.assemble(("whystall", "bold"), "  ", (" · ".join(overview.source_line(report)), "dim"))
    yield ""
    yield Text(overview.summary(report), style="bold")
    yield from _verdict_facts(report, with_cause=not named)
    if basis := overview.basis(report):
        yield Text(basis)
    top = overview.headline(report)
    if line := overview.job_line(report.job):
        yield Text(f"\n{line}", style="dim")
    if top:
        yield ""
        yield from _ledger(top, page, overview.efficiency_line(report))
    if page.verbose:
        yield from _losses(report)
        yield from _findings(view)
    else:
        yield from _first_findings(report, view)
    yield from _sections("job", report, page)
    only = overview.headline_rank(top, ranks)
    for rank in ranks:
        if (page.verbose and rank.in_depth) or rank is only:
            yield from _rank(rank, page, several=len(ranks) > 1)
    yield from _sections("capture", report, page)
    if not page.verbose:
        yield from _ending(report, view)
    if page.is_narrow:
        yield Text(f"\n{_MORE_COLUMNS}", style="dim")


def _verdict_facts(report: Report, *, with_cause: bool) -> Iterator[Text]:
    verdict = report.verdict
    if verdict.cause and with_cause:
        gain = f" · {gain_words(verdict.gain)}" if verdict.gain else ""
        yield Text(f"cause {clean(verdict.cause, 80)}{gain} · confidence {verdict.confidence * 100:.0f} %")
    if action := overview.action(report):
        yield Text(f"do: {action}")


def _heading(text: str) -> Text:
    return Text(f"\n{text.upper()}", style="bold")


def _ledger(bar: overview.Bar, page: _Page, efficiency: str) -> Iterator[RenderableType]:
    yield Text(f"{device_title(bar.device)} · {bar.window}", style="dim")
    yield _bar(bar.segments, page.width)
    grid = _grid(("", "Part", "Share", "Time", "Meaning"), numbers={2, 3})
    shown = bar.segments if page.verbose else tuple(one for one in bar.segments if one.tenths >= _LEAST_TENTHS)
    for segment in shown:
        grid.add_row(
            Text(segment.part.glyph, style=segment.part.colour),
            Text(segment.part.label),
            Text(segment.percent),
            Text(segment.time),
            Text(segment.part.explained(bar.device.kind), style="dim"),
        )
    rest = [one for one in bar.segments if one not in shown]
    if rest:
        tenths, ns = sum(one.tenths for one in rest), sum(one.ns for one in rest)
        names = ", ".join(overview.words_of(one.part) for one in rest)
        meaning = Text(f"{names[0].upper()}{names[1:]}.", style="dim")
        grid.add_row("", "Others", fmt.percent_of_tenths(tenths), fmt.duration(ns), meaning)
    yield grid
    for other in overview.bars_beside(bar.device):
        yield Text(other.window, style="dim")
        yield _bar(other.segments, page.width)
    if efficiency:
        yield Text(efficiency, style="dim")


def _bar(segments: tuple[overview.Segment, ...], width: int) -> Text:
    """The bar in letters: each part's mark as often as its share of the width."""
    bar, drawn = Text(no_wrap=True), 0
    for segment in segments:
        upto = round((segment.start + segment.width) * width / 100)
        bar.append(segment.part.glyph * (upto - drawn), style=f"{segment.part.ink} on {segment.part.colour}")
        drawn = upto
    return bar


def _first_findings(report: Report, view: FindingsView) -> Iterator[RenderableType]:
    """The first findings in a few lines each, the largest notes by their titles, and the plan."""
    notes = view.notes[: _MOST_FINDINGS - len(view.named)]
    if view.named or notes:
        yield ""
    for number, finding in enumerate(view.named, 1):
        yield _title(finding, number)
        yield from _indented(_in_short(finding, is_on_top=finding.id == report.verdict.cause))
    for note in notes:
        yield Text(f"- {note.title} ({note.id}{f', {note.scope}' if note.scope else ''})")
        yield from _indented([_at(place) for place in note.places[:1]])
    if view.plan:
        yield Text(f"Plan: {view.plan.sentence}.")
    more = view.omitted + len(view.notes) - len(notes)
    if more:
        yield Text(f"… {more:,} more", style="dim")
    if view.basis and view.named:
        yield Text(view.basis, style="dim")


def _in_short(finding: FindingView, *, is_on_top: bool) -> Iterator[RenderableType]:
    """The loss, its place and its remedy; the remedy of the verdict's cause stands on top."""
    yield _facts(finding)
    if finding.chain:
        yield Text(" -> ".join(finding.chain))
    if finding.strongest:
        yield Text("; ".join(f"{fact.what}: {fact.value}" for fact in finding.strongest), style="dim")
    for place in finding.places[:1]:
        yield _at(place)
    if finding.remedy and not is_on_top:
        yield Text(f"do: {finding.advice}")
    for line in finding.patch[:3] if is_on_top else ():
        yield Text(f"    {line}", style="cyan")
    for other in finding.instead[:1]:
        yield Text(f"or instead: {other.title} ({other.id}), {other.gain}{_where(other)}")


def _ending(report: Report, view: FindingsView) -> Iterator[RenderableType]:
    """Losses of the recording, and the command that proves the first remedy."""
    lines = overview.losses(report, limit=2, short=True)
    if view.hindered and lines:
        lines = (*lines[:-1], f"{lines[-1]}: {fmt.plural(view.hindered, 'cause')} not looked for")
    command = next((one.command for one in view.named if one.command), None)
    if lines or command:
        yield ""
    for line in lines:
        yield Text(f"! {line}")
    if command:
        yield Text(f"verify: {command}", style="dim")


def _losses(report: Report) -> Iterator[RenderableType]:
    lines = overview.losses(report, limit=200)
    if lines:
        yield _heading("Lost, repaired or not recorded")
    for line in lines:
        yield Text(f"! {line}")


def _findings(view: FindingsView) -> Iterator[RenderableType]:
    """All findings in full."""
    if view.named:
        yield _heading("Findings")
    for number, finding in enumerate(view.named, 1):
        yield _title(finding, number)
        yield from _indented([_facts(finding), *_details(finding)])
    if view.plan:
        yield Text(f"\nPlan: {view.plan.sentence}.")
    if view.notes:
        yield _heading("Worth knowing")
    for note in view.notes:
        yield Text(f"- {note.title} ({note.id}{f', {note.scope}' if note.scope else ''})")
        yield from _indented(_details(note))
    if view.omitted:
        yield Text(f"… {view.omitted:,} more", style="dim")
    yield from _undecided(view)
    if view.small_print and (view.named or view.notes):
        yield Text(" ".join(view.small_print), style="dim")


def _title(finding: FindingView, number: int) -> Text:
    return Text.assemble(f"{number}. ", (finding.title, "bold"))


def _facts(finding: FindingView) -> Text:
    style = "bold red" if finding.severity == "critical" else "bold yellow" if finding.severity == "major" else "bold"
    return Text.assemble((finding.label.lower(), style), f" · {finding.id} · {' · '.join(finding.facts)}")


def _details(finding: FindingView) -> Iterator[RenderableType]:
    if finding.chain:
        yield Text(" -> ".join(finding.chain))
    if finding.evidence:
        yield _evidence(finding.evidence)
    for place in finding.places:
        yield _at(place)
    if finding.nowhere:
        yield Text(finding.nowhere, style="dim")
    if finding.remedy:
        yield Text(f"do: {finding.remedy}")
    for line in finding.patch:
        yield Text(f"    {line}", style="cyan")
    for other in finding.instead:
        yield _instead(other)
    yield from _grounds(finding)


def _evidence(facts: Sequence[Fact]) -> RichTable:
    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    grid.add_column(overflow="fold")
    grid.add_column(justify="right", overflow="fold")
    for fact in facts:
        grid.add_row(Text(fact.what), Text(fact.value))
    return grid


def _grounds(finding: FindingView) -> Iterator[Text]:
    """Evidence for the finding and against others, and the command that proves it."""
    if finding.risk:
        yield Text(f"risk: {finding.risk}")
    if finding.command:
        yield Text(f"verify: {finding.command}{f' (expect: {finding.expect})' if finding.expect else ''}", style="dim")
    for cause, because in finding.rejected:
        yield Text(f"considered and rejected: {cause}, {because}", style="dim")
    if finding.missing:
        yield Text(f"would be surer with: {finding.missing}", style="dim")


def _instead(other: OtherRepair) -> Text:
    return Text(f"or instead: {other.title} ({other.id}), {other.gain} of the same time{_where(other)}: {other.remedy}")


def _where(other: OtherRepair) -> str:
    return "".join(f", at {place.where}{f' {place.text}' if place.text else ''}" for place in other.places[:1])


def _at(place: CodeLine) -> Text:
    share = f"  ({place.share} of it)" if place.share else ""
    return Text(f"at {place.where}{f'  {place.text}' if place.text else ''}{share}", style="dim")


def _indented(parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    return (Padding(part, (0, 0, 0, 3), expand=False) for part in parts)


def _undecided(view: FindingsView) -> Iterator[RenderableType]:
    if view.undecided:
        yield _heading("Not looked for")
    for one in view.undecided:
        yield Text(f"without {one.needs}: {', '.join(one.causes)}")


def _rank(rank: RankReport, page: _Page, *, several: bool) -> Iterator[RenderableType]:
    suffix = f" · rank {rank.rank}" if several else ""
    for device in rank.devices if page.verbose else rank.devices[:1]:
        yield from _sections("device", rank.of_device(device), page, suffix)
    yield from _sections("rank", rank, page, suffix)


def _sections(
    scope: Scope, part: Report | RankReport | DeviceReport, page: _Page, suffix: str = ""
) -> Iterator[RenderableType]:
    """The tables from a part of the report; few of them, of few rows, unless all of it is shown."""
    for section in of_scope(page.sections, scope):
        shown = section.terminal
        if shown is None or not (page.verbose or shown.rows):
            continue
        # Names are cut once it is known how wide their column is.
        table = section.build(part, Limits(rows=_MOST_ROWS if page.verbose else shown.rows, name=_LONGEST_NAME))
        short = table.only(*shown.columns) if shown.columns and not page.verbose else table
        if len(table.rows) >= shown.fewest:
            yield from _section(short, page, suffix)


def _section(table: Table, page: _Page, suffix: str) -> Iterator[RenderableType]:
    if not table:
        return
    fit = fitted(table, page.width)
    yield _heading(table.title + suffix)
    yield _lines(fit)
    more = [f"{table.omitted:,} more"] if table.omitted else []
    if fit.left_out:
        page.is_narrow = True
        more.append(f"more columns: {', '.join(fit.left_out)}")
    if more:
        yield Text(f"… {' · '.join(more)}", style="dim")


def _lines(fit: Fitted) -> RichTable:
    """The fitted table: rich decides only where sentences and headings break."""
    grid = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim", show_edge=False)
    for column, width in zip(fit.table.columns, fit.widths, strict=True):
        grid.add_column(Text(column.label), justify="right" if column.kind == "number" else "left", width=width)
    for row in fit.table.rows:
        grid.add_row(*(_cell(cell.text, column.kind) for cell, column in zip(row, fit.table.columns, strict=True)))
    return grid


def _cell(text: str, kind: Kind) -> Text:
    """A cell of one line; a text still too long is a sentence to be broken, or made of wide characters."""
    return Text(text, overflow="fold") if kind == "prose" else Text(text, no_wrap=True, overflow="ellipsis")


def _grid(labels: tuple[str, ...], numbers: set[int]) -> RichTable:
    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for index, label in enumerate(labels):
        number = index in numbers
        grid.add_column(Text(label), justify="right" if number else "left", overflow="fold", no_wrap=number)
    return grid
