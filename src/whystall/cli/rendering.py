"""Rendering for a stream: what the terminal can show goes into the renderer's options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.cli.console import Console
    from whystall.report.schema import Report


def render(report: Report, format_: str, console: Console | None = None) -> str:
    """``report`` in ``format_``; for the terminal as ``console``'s stdout and ``-v`` want it, else plain."""
    import whystall

    if console is None:
        return whystall.render(report, format_, root=str(Path.cwd()))
    return whystall.render(report, format_, width=console.width, colour=console.colour, verbose=console.verbose)
