"""The report as one self-contained HTML page: no remote address, at most 1 MB, readable without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from whystall.report import overview
from whystall.report.findings import findings_view, gain_words
from whystall.report.names import clean
from whystall.report.page import BUDGETS, Budget, page
from whystall.report.registry import Options, TimelineLinks
from whystall.report.schema import Report
from whystall.report.sections.registry import SECTIONS
from whystall.report.sections.section import Section
from whystall.report.vocabulary import PARTS

MAX_BYTES = 1_000_000
_SCRIPTS = ("theme.js", "tables.js", "timeline.js", "icicle.js")
_IN_SCRIPT = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render_html(report: Report, options: Options | None = None) -> str:
    """The page of a report: same report, same bytes; what does not fit is counted, not dropped in silence."""
    sections = (*SECTIONS, *(options.more_sections if options else ()))
    timelines = options.timelines if options else None
    document = ""
    for budget in BUDGETS:
        document = _render(report, budget, sections, timelines)
        if len(document.encode()) <= MAX_BYTES:
            break
    return document


def _render(report: Report, budget: Budget, sections: Sequence[Section], timelines: TimelineLinks | None) -> str:
    style = _style()
    scripts = tuple(map(_asset, _SCRIPTS))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            page=page(report, budget, sections),
            summary=overview.summary(report),
            action=overview.action(report),
            basis=overview.basis(report),
            source_line=overview.source_line(report),
            losses=overview.losses(report, limit=min(budget.rows, 20)),
            efficiency=overview.efficiency_line(report),
            findings=findings_view(report, max(budget.rows // 4, 3)),
            gain=gain_words(report.verdict.gain) if report.verdict.gain else None,
            parts=PARTS,
            timelines=timelines,
            style=Markup(style),  # noqa: S704 - the package's own file
            scripts=[Markup(script) for script in scripts],  # noqa: S704 - the package's own files
            policy=_policy(style, scripts),
        )
    )


def _policy(style: str, scripts: tuple[str, ...]) -> str:
    """A Content-Security-Policy that runs this page's own style and scripts, by hash, and fetches nothing."""
    hashes = " ".join(map(_hash, scripts))
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {hashes}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_json(data: object) -> Markup:
    """Data for a script element that cannot end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.translate(_IN_SCRIPT))  # noqa: S704 - every character that HTML reads is escaped


@cache
def _asset(name: str) -> str:
    text = resources.files("whystall.report").joinpath("templates", name).read_text(encoding="utf-8")
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


@cache
def _style() -> str:
    colours = "\n".join(
        f".c-{part.key} {{ fill: {part.colour}; }} .i-{part.key} {{ fill: {part.ink}; }}" for part in PARTS
    )
    return f"{_asset('page.css')}{colours}\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("whystall.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = as_json
    environment.filters["clean"] = clean
    return environment
