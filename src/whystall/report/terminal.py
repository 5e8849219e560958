"""The report for a terminal: about a screen and a half; with ``verbose`` all of it."""

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
    ranks = by_rank(report)
    yield Text.assemble(("whystall", "bold"), "  ", (" · ".join(overview.source_line(report)), "dim"))
    yield ""
    yield Text(overview.summary(report), style="bold")
    yield from _verdict_facts(report)
    if basis := overview.basis(report):
        yield Text(basis)
    top = overview.headline(report)
    if top:
        yield ""
        yield from _ledger(top, page.width, overview.efficiency_line(report))
    yield from _losses(report, verbose=page.verbose)
    yield from _findings(report, verbose=page.verbose)
    yield from _sections("job", report, page)
    only = overview.headline_rank(top, ranks)
    for rank in ranks:
        if (page.verbose and rank.in_depth) or rank is only:
            yield from _rank(rank, page, several=len(ranks) > 1)
    yield from _sections("capture", report, page)
    if page.is_narrow:
        yield Text(f"\n{_MORE_COLUMNS}", style="dim")


def _verdict_facts(report: Report) -> Iterator[Text]:
    verdict = report.verdict
    if verdict.cause:
        yield Text(f"cause {clean(verdict.cause, 80)} · confidence {verdict.confidence * 100:.0f} %")
    if verdict.gain:
        gain = verdict.gain
        yield Text(f"expected gain {gain_words(gain)}")
    if action := overview.action(report):
        yield Text(f"do: {action}")


def _heading(text: str) -> Text:
    return Text(f"\n{text.upper()}", style="bold")


def _ledger(bar: overview.Bar, width: int, efficiency: str) -> Iterator[RenderableType]:
    yield Text(f"{device_title(bar.device)} · {bar.window}", style="dim")
    yield _bar(bar.segments, width)
    grid = _grid(("", "Part", "Share", "Time", "Meaning"), numbers={2, 3})
    for segment in bar.segments:
        grid.add_row(
            Text(segment.part.glyph, style=segment.part.colour),
            Text(segment.part.label),
            Text(segment.percent),
            Text(segment.time),
            Text(segment.part.explained(bar.device.kind), style="dim"),
        )
    yield grid
    for other in overview.bars_beside(bar.device):
        yield Text(other.window, style="dim")
        yield _bar(other.segments, width)
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


def _losses(report: Report, *, verbose: bool) -> Iterator[RenderableType]:
    lines = overview.losses(report, limit=200 if verbose else 5)
    if lines:
        yield _heading("Lost, repaired or not recorded")
    for line in lines:
        yield Text(f"! {line}")


def _findings(report: Report, *, verbose: bool) -> Iterator[RenderableType]:
    """The first finding in full, the others with their remedies; all in full if ``verbose``."""
    view = findings_view(report, 50 if verbose else 5)
    if view.named:
        yield _heading("Findings")
    for number, finding in enumerate(view.named, 1):
        yield from _finding(finding, number, full=verbose or number == 1)
    if view.plan:
        yield Text(f"\nPlan: {view.plan.sentence}.")
    if view.notes:
        yield _heading("Worth knowing")
    for note in view.notes:
        yield Text(f"- {note.title} ({note.id}{f', {note.scope}' if note.scope else ''})")
        if verbose or note.remedy:
            yield from _indented(_details(note, full=verbose))
    if view.omitted:
        yield Text(f"… {view.omitted:,} more", style="dim")
    yield from _undecided(view, verbose=verbose)
    if view.small_print and (view.named or view.notes):
        yield Text(" ".join(view.small_print), style="dim")


def _finding(finding: FindingView, number: int, *, full: bool) -> Iterator[RenderableType]:
    style = "bold red" if finding.severity == "critical" else "bold yellow" if finding.severity == "major" else "bold"
    yield Text.assemble(f"{number}. ", (finding.title, "bold"))
    facts = Text.assemble((finding.label.lower(), style), f" · {finding.id} · {' · '.join(finding.facts)}")
    yield from _indented([facts, *_details(finding, full=full)])


def _details(finding: FindingView, *, full: bool) -> Iterator[RenderableType]:
    if finding.chain:
        yield Text(" -> ".join(finding.chain))
    if finding.evidence:
        yield _evidence(finding.evidence if full else finding.evidence[:2])
    for place in finding.places if full else finding.places[:1]:
        yield _at(place)
    if finding.nowhere and full:
        yield Text(finding.nowhere, style="dim")
    if finding.remedy:
        yield Text(f"do: {finding.remedy}")
    for line in finding.patch if full else finding.patch[:3]:
        yield Text(f"    {line}", style="cyan")
    for other in finding.instead:
        yield _instead(other)
    if full:
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
    at = "".join(f", at {place.where}{f' {place.text}' if place.text else ''}" for place in other.places[:1])
    return Text(f"or instead: {other.title} ({other.id}), {other.gain} of the same time{at}: {other.remedy}")


def _at(place: CodeLine) -> Text:
    share = f"  ({place.share} of it)" if place.share else ""
    return Text(f"at {place.where}{f'  {place.text}' if place.text else ''}{share}", style="dim")


def _indented(parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    return (Padding(part, (0, 0, 0, 3), expand=False) for part in parts)


def _undecided(view: FindingsView, *, verbose: bool) -> Iterator[RenderableType]:
    if not view.undecided:
        return
    if not verbose:
        needs = "; ".join(one.needs for one in view.undecided[:3]) + (" …" if len(view.undecided) > 3 else "")
        yield Text(f"\nNot looked for: {fmt.plural(view.undecided_causes, 'cause')}, for want of {needs}", style="dim")
        return
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
    """The tables from a part of the report: those of the short report, then those that the long one adds."""
    found = [(section, section.terminal) for section in of_scope(page.sections, scope) if section.terminal]
    for full in (False, True) if page.verbose else (False,):
        for section, shown in found:
            if shown.full == full:
                # Names are cut once it is known how wide their column is.
                limits = Limits(rows=_MOST_ROWS if page.verbose else shown.rows, name=_LONGEST_NAME)
                table = section.build(part, limits)
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
