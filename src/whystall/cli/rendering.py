"""Rendering for a stream: what the terminal can show goes into the renderer's options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.cli.console import Console
    from whystall.cli.output import Format
    from whystall.report.schema import Report


def render(report: Report, format_: Format, console: Console | None = None) -> str:
    """``report`` in ``format_``; for the terminal as ``console``'s stdout and ``-v`` want it, else plain."""
    import whystall
    from whystall.report import terminal

    if format_ == "terminal" and console is not None:
        return terminal.render_terminal(report, width=console.width, colour=console.colour, verbose=console.verbose)
    return whystall.render(report, format_)
