"""``whystall report``: the page (or another format) from a trace, a run folder or a stored report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output
from whystall.cli.rendering import render
from whystall.run_folder.layout import REPORT_HTML

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console


class Report:
    """The verb ``report``."""

    name = "report"
    help = "write the report as one self-contained HTML file"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="trace, folder, glob, run folder or report.json")
        parser.add_argument(
            "-o",
            "--output",
            default=REPORT_HTML,
            metavar="FILE",
            help=f"where to write; .html, .json, .md or .txt picks the format (default: {REPORT_HTML})",
        )
        output.add_redact(parser)
        inputs.add_reading(parser)
        output.add_force(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Writes the report; 0."""
        path = Path(options.output)
        format_ = output.format_of(path)
        output.check_free(path, force=options.force)
        report = output.to_share(inputs.report_from(options.paths, options, console), options)
        output.write_text(path, render(report, format_), force=options.force)
        console.result(str(path))
        console.next(f"open {path} in a browser" if format_ == "html" else f"less {path}")
        return 0
