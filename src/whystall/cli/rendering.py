"""Rendering for a stream: the terminal's abilities go into the renderer's options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.cli.console import Console
    from whystall.report.schema import Report


def render(report: Report, format_: str, console: Console | None = None, *, whole: bool = True) -> str:
    """``report`` in ``format_``; for the terminal as ``console``'s stdout and ``-v`` want it.

    Without a console it is plain, and for the terminal ``whole`` or a screen of it.
    """
    import whystall

    if console is None:
        return whystall.render(report, format_, root=str(Path.cwd()), verbose=whole)
    return whystall.render(report, format_, width=console.width, colour=console.colour, verbose=console.verbose)


def render_page(report: Report, *, perfetto: bool) -> str:
    """The page as `whystall view` serves it: with links to timelines, in Perfetto where that is there."""
    from whystall.report.html import render_html
    from whystall.report.registry import Options, TimelineLinks
    from whystall.report.sections.extensions import installed_sections
    from whystall.view.site import TIMELINE

    words = ("Open it in Perfetto", "Open a step in Perfetto")
    if not perfetto:
        words = ("Download it as a trace for Perfetto", "Download a step as a trace for Perfetto")
    recorded = any(file.in_depth for file in report.source.files)
    links = TimelineLinks(TIMELINE, *words) if recorded else None
    return render_html(report, Options(more_sections=installed_sections(), timelines=links))
