"""``whystall compare``: what changed between two runs, with noise bands, and which cause went away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console

CROSSED = 1
_MANY_ROWS = 40


class Compare:
    """The verb ``compare``."""

    name = "compare"
    help = "what changed between two runs, and which cause went away"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("base", metavar="BASE", help="trace, folder, glob, run folder or report.json")
        parser.add_argument("candidate", metavar="CANDIDATE", help="the same, of the run that is compared with it")
        stdout = parser.add_mutually_exclusive_group()
        stdout.add_argument("--json", action="store_true", help="print as JSON (schema whystall.comparison/1)")
        stdout.add_argument("--markdown", action="store_true", help="print as Markdown")
        parser.add_argument(
            "-o", "--output", action="append", default=[], metavar="FILE", help="also write .html, .json, .md or .txt"
        )
        parser.add_argument(
            "--fail-on",
            action="append",
            default=[],
            metavar="CONDITION",
            help="exit with 1 when it holds beyond the noise: "
            "step>+3%%, idle_input>+2ms, operator:NAME>+10%%, new-cause; or of a count: launches>+0",
        )
        parser.add_argument(
            "--again",
            nargs=2,
            action="append",
            default=[],
            metavar=("BASE", "CANDIDATE"),
            help="a further run of each: two runs of the same code differ, and only further pairs tell by how much",
        )
        inputs.add_reading(parser)
        output.add_force(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the comparison; 1 when a condition of ``--fail-on`` holds, else 0."""
        from whystall.cli import thresholds
        from whystall.diagnosis.comparison import compare_reports
        from whystall.report.comparison import render_comparison
        from whystall.report.comparison_page import comparison_document

        conditions = [thresholds.parse(text) for text in options.fail_on]
        targets = [(Path(name), output.format_of(Path(name))) for name in options.output]
        for path, _ in targets:
            output.check_free(path, force=options.force)
        base = inputs.report_from([options.base], options, console)
        candidate = inputs.report_from([options.candidate], options, console)
        for condition in conditions:
            condition.check(base, candidate)
        again = [tuple(inputs.report_from([path], options, console) for path in pair) for pair in options.again]
        comparison = compare_reports(
            base, candidate, (options.base, options.candidate), [(one, other) for one, other in again]
        )
        format_ = "json" if options.json else "markdown" if options.markdown else "terminal"
        console.result(render_comparison(comparison, format_, rows=_MANY_ROWS if console.verbose else 10))
        for path, wanted in targets:
            if wanted == "html":
                output.write_page(path, lambda _: comparison_document(comparison))
            else:
                output.write_text(path, render_comparison(comparison, wanted))
            console.note(f"wrote {path}")
        crossed = [condition.text for condition in conditions if condition.crossed(comparison)]
        for text in crossed:
            console.note(f"crossed: {text}")
        for condition in conditions:
            if (why := condition.is_open(comparison)) is not None:
                console.note(f"not judged: {condition.text}: {why}")
        console.next(f"whystall report {inputs.shell_quote([options.candidate])} -o report.html")
        return CROSSED if crossed else 0
