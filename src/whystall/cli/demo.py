"""``whystall demo``: the whole way on a small recording that ships with whystall; no torch, no GPU."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import output
from whystall.cli.rendering import render
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console


class Demo:
    """The verb ``demo``."""

    name = "demo"
    help = "analyse a small recording that ships with whystall and open the report"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument(
            "-o", "--output", metavar="FILE", help="where to write the page (default: a temporary file)"
        )
        parser.add_argument("--no-open", action="store_true", help="do not open the page in a browser")
        output.add_force(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the report, writes and opens the page; 0."""
        import whystall

        wanted = None if options.output is None else _page(options.output, force=options.force)
        report = whystall.analyze(whystall.demo_recording(), cache=False)
        console.result(render(report, "terminal", console))
        path = wanted or Path(tempfile.mkdtemp(prefix="whystall-demo-")) / "report.html"
        output.write_text(path, render(report, "html"), force=options.force)
        console.result(f"report: {path}")
        if not options.no_open and has_display():
            _open(path)
        console.next("whystall analyze TRACE")
        return 0


def _page(name: str, *, force: bool) -> Path:
    """The file to write the page to, free to be written."""
    path = Path(name)
    if output.format_of(path) != "html":
        raise UsageError(f"the demo writes a page: end {path} in .html")
    output.check_free(path, force=force)
    return path


def has_display() -> bool:
    """Whether a browser could open a window here; a text browser in the terminal is never started."""
    if sys.platform in {"darwin", "win32"}:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(path: Path) -> None:
    import webbrowser

    webbrowser.open(path.resolve().as_uri())
