"""The report for a pull request: GitHub's Markdown with two Mermaid pies, always below GitHub's size limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from whystall.analysis.results import Module
from whystall.report import format as fmt
from whystall.report import overview
from whystall.report.findings import FindingsView, FindingView, OtherRepair, findings_view
from whystall.report.names import clean
from whystall.report.ranks import DeviceReport, RankReport, by_rank, device_title
from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.sections.registry import SECTIONS
from whystall.report.sections.section import Section, of_scope
from whystall.report.tables import Limits, Table

MAX_BYTES = 60_000
_LIMITS = (Limits(rows=15, name=72), Limits(rows=8, name=48), Limits(rows=3, name=32))
_MOST_SLICES = 8
_PIE_AFTER = "kernels"  # the modules are drawn, not listed
_SPECIAL = re.compile(r"([\\`*_{}\[\]#!|~@$:<>&])")
_WWW = re.compile(r"(?i)(www)\.")
_APART = "&#8203;"
_ENTITIES = {
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
    "|": "&#124;",
    "@": "&#64;",
    "#": "&#35;",
    ":": "&#58;",
    "$": "&#36;",
}


def render_markdown(report: Report, options: Options | None = None) -> str:
    """The report as GitHub Markdown, cut until it fits a comment."""
    sections = (*SECTIONS, *(options.more_sections if options else ()))
    document = ""
    for limits in _LIMITS:
        document = "\n".join(_lines(report, sections, limits)).rstrip() + "\n"
        if len(document.encode()) <= MAX_BYTES:
            break
    return document


def _lines(report: Report, sections: Sequence[Section], limits: Limits) -> Iterator[str]:
    ranks = by_rank(report)
    top = overview.headline(report)
    yield f"### {escape(overview.summary(report))}\n"
    for said in filter(None, (overview.action(report), overview.basis(report))):
        yield f"{escape(said)}\n"
    yield f"{escape(' · '.join(overview.source_line(report)))}\n"
    if top:
        facts = filter(None, (device_title(top.device), top.window, overview.efficiency_line(report)))
        yield f"{' · '.join(map(escape, facts))}\n"
        yield from _ledger(top)
        yield from _beside(overview.bars_beside(top.device))
    yield from _bullets("Lost, repaired or not recorded", overview.losses(report, limit=min(limits.rows, 10)))
    yield from _findings(report, limits)
    yield from _sections(of_scope(sections, "job"), report, limits)
    rank = overview.headline_rank(top, ranks)
    if rank:
        yield from _rank(rank, sections, limits)
    if rank and len(ranks) > 1:
        yield f"Tables are of rank {rank.rank}; the HTML and JSON reports have the others.\n"
    yield from _sections(of_scope(sections, "capture"), report, limits)


def _sections(sections: Iterable[Section], part: Report | RankReport | DeviceReport, limits: Limits) -> Iterator[str]:
    """The tables of these sections, those that have rows."""
    for section in sections:
        shown = section.markdown
        table = section.build(part, limits) if shown else None
        if shown and table and len(table.rows) >= shown.fewest:
            chosen = table.only(*shown.columns) if shown.columns else table
            yield from _folded(chosen) if shown.folded else _table(chosen)
        if section.id == _PIE_AFTER and isinstance(part, RankReport):
            yield from _pie("Device time by module", _module_slices(part.modules))


def _ledger(bar: overview.Bar) -> Iterator[str]:
    yield "| Part | Share | Time | Meaning |"
    yield "|---|--:|--:|---|"
    for segment in bar.segments:
        part = segment.part
        yield f"| {part.label} | {segment.percent} | {segment.time} | {part.explained(bar.device.kind)} |"
    yield ""
    slices = [(segment.part.label, segment.tenths) for segment in bar.segments if segment.tenths > 0]
    yield from _pie("One step", slices)


def _beside(bars: Sequence[overview.Bar]) -> Iterator[str]:
    """A usual and a slow step side by side, part by part."""
    if not bars:
        return
    yield f"| Part | {' | '.join(escape(bar.window) for bar in bars)} |"
    yield f"|---|{'--:|' * len(bars)}"
    shares = [{segment.part.label: segment.percent for segment in bar.segments} for bar in bars]
    for label in dict.fromkeys(label for share in shares for label in share):
        yield f"| {label} | {' | '.join(share.get(label, '0.0 %') for share in shares)} |"
    yield ""


def _pie(title: str, slices: Sequence[tuple[str, int]]) -> Iterator[str]:
    if not slices:
        return
    yield "```mermaid"
    yield f"pie showData title {title}, in percent"
    for label, tenths in slices:
        yield f'    "{_plain(label)}" : {tenths // 10}.{tenths % 10}'
    yield "```\n"


def _rank(rank: RankReport, sections: Sequence[Section], limits: Limits) -> Iterator[str]:
    for device in rank.devices[:1]:
        yield from _sections(of_scope(sections, "device"), rank.of_device(device), limits)
    yield from _sections(of_scope(sections, "rank"), rank, limits)


def _module_slices(modules: Sequence[Module]) -> list[tuple[str, int]]:
    """The modules by their own device time, so that the slices make up a whole."""
    own = {row.path or row.class_: row.forward_self_ns + row.backward_self_ns for row in modules}
    heaviest = sorted(((path, ns) for path, ns in own.items() if ns > 0), key=lambda item: (-item[1], item[0]))
    shown = heaviest[:_MOST_SLICES]
    rest = sum(ns for _, ns in heaviest[_MOST_SLICES:])
    slices = [*shown, ("other modules", rest)] if rest else shown
    shares = fmt.tenths(ns for _, ns in slices)
    return [(path, share) for (path, _), share in zip(slices, shares, strict=True) if share > 0]


def _table(table: Table, *, title: bool = True) -> Iterator[str]:
    if not table:
        return
    if title:
        yield f"#### {table.title}\n"
    yield "| " + " | ".join(column.label for column in table.columns) + " |"
    yield "|" + "|".join("--:" if column.kind == "number" else "---" for column in table.columns) + "|"
    for row in table.rows:
        yield (
            "| "
            + " | ".join(_cell(cell.text, column.kind) for cell, column in zip(row, table.columns, strict=True))
            + " |"
        )
    if table.omitted:
        yield f"\n… {table.omitted:,} more"
    yield ""


def _cell(text: str, kind: str) -> str:
    return code(text) if kind == "name" else escape(text)


def _folded(table: Table) -> Iterator[str]:
    if not table:
        return
    yield f"<details><summary>{table.title}</summary>\n"
    yield from _table(table, title=False)
    yield "</details>\n"


def _bullets(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield f"#### {title}\n"
    for line in lines:
        yield f"- {escape(line)}"
    yield ""


def _findings(report: Report, limits: Limits) -> Iterator[str]:
    view = findings_view(report, min(limits.rows, 10))
    if view.named:
        yield "#### Findings\n"
    for number, finding in enumerate(view.named, 1):
        yield from _finding(finding, number)
    if view.plan:
        yield f"**Plan.** {escape(view.plan.sentence)}.\n"
    if view.notes:
        yield "#### Worth knowing\n"
        for note in view.notes:
            worth = f" ({escape(note.gain)})" if note.gain else ""
            advice = f" {escape(note.remedy)}" if note.remedy else ""
            scope = f" · {escape(note.scope)}" if note.scope else ""
            yield f"- {escape(note.title)} {code(note.id)}{scope}{worth}{advice}"
        yield ""
    if view.omitted:
        yield f"… {view.omitted:,} more\n"
    yield from _undecided(view)
    if view.small_print and (view.named or view.notes):
        yield f"{escape(' '.join(view.small_print))}\n"


def _finding(finding: FindingView, number: int) -> Iterator[str]:
    yield f"##### {number}. {escape(finding.title)}\n"
    yield f"{finding.label} · {code(finding.id)} · {escape(' · '.join(finding.facts))}\n"
    if finding.chain:
        yield f"{' → '.join(map(escape, finding.chain))}\n"
    if finding.evidence:
        yield "| Measured | Value |"
        yield "|---|--:|"
        for fact in finding.evidence:
            yield f"| {escape(fact.what)} | {escape(fact.value)} |"
        yield ""
    for place in finding.places[:5]:
        share = f", {escape(place.share)} of it" if place.share else ""
        yield f"- {code(place.where)}{f' {code(place.text)}' if place.text else ''}{share}"
    if finding.places:
        yield ""
    if finding.nowhere:
        yield f"{escape(finding.nowhere)}\n"
    if finding.remedy:
        risk = f" Risk: {escape(finding.risk)}" if finding.risk else ""
        yield f"**Do.** {escape(finding.remedy)}{risk}\n"
    yield from _patch(finding.patch)
    if finding.command:
        expect = f", expect: {escape(finding.expect)}" if finding.expect else ""
        yield f"**Verify.** {code(finding.command)}{expect}\n"
    for other in finding.instead:
        yield from _instead(other)
    yield from _grounds(finding)


def _instead(other: OtherRepair) -> Iterator[str]:
    """Another repair of the same loss."""
    at = ", ".join(f"{code(place.where)}{f' {code(place.text)}' if place.text else ''}" for place in other.places[:3])
    where = f" At {at}." if at else ""
    what = f"{escape(other.title)} ({code(other.id)}, {escape(other.gain)})"
    yield f"**Or instead.** {what}.{where} {escape(other.remedy)}\n"
    yield from _patch(other.patch)


def _grounds(finding: FindingView) -> Iterator[str]:
    """Evidence for the finding and against others, folded."""
    if finding.rejected or finding.missing:
        yield "<details><summary>Considered and rejected, method, missing signals</summary>\n"
        for cause, because in finding.rejected:
            yield f"- rejected {code(cause)}: {escape(because)}"
        if finding.method:
            yield f"- method: {escape(finding.method)}"
        if finding.missing:
            yield f"- would be surer with: {escape(finding.missing)}"
        yield "\n</details>\n"


# In a block of code nothing is escaped: a line with one of these could end it, or be taken for HTML by a lesser reader.
_UNFIT_FOR_BLOCK = re.compile(r"[`<>~@\\]")


def _patch(lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    if any(_UNFIT_FOR_BLOCK.search(line) for line in lines):
        for line in lines:
            yield f"{code(line)}  "
        yield ""
        return
    yield "```python"
    yield from lines
    yield "```\n"


def _undecided(view: FindingsView) -> Iterator[str]:
    if not view.undecided:
        return
    yield f"<details><summary>{fmt.plural(view.undecided_causes, 'cause')} not looked for</summary>\n"
    for one in view.undecided:
        yield f"- without {escape(one.needs)}: {', '.join(code(cause) for cause in one.causes)}"
    yield "\n</details>\n"


def escape(text: str) -> str:
    r"""Text that Markdown shows as it is: no markup, no HTML, no link, no mention.

    >>> escape("a|b <i> step_1 12.3 %")
    'a&#124;b &lt;i&gt; step\\_1 12.3 %'
    """
    return (
        _literal(text).replace(_ENTITIES["@"], _ENTITIES["@"] + _APART).replace(_ENTITIES["#"], _ENTITIES["#"] + _APART)
    )


def code(text: str) -> str:
    """A name in code type that no backtick or pipe can leave.

    >>> code("f<int>(a | b)")
    '<code>f&lt;int&gt;(a &#124; b)</code>'
    """
    return f"<code>{_literal(text)}</code>" if text else ""


def _literal(text: str) -> str:
    escaped = _SPECIAL.sub(lambda match: _ENTITIES.get(match[1], f"\\{match[1]}"), text)
    return _WWW.sub(r"\1&#46;", escaped)


def _plain(label: str) -> str:
    """A label that cannot end a Mermaid string, nor start a directive."""
    return re.sub(r'["%{}<>;#&`\\]', "", clean(label, 60)).strip() or "(unnamed)"
