"""``whystall serve``: why a language-model server is slow, from files of a served run, or from one that it starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output, serve_flags

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.serving.outcome import Outcome


class Serve:
    """The verb ``serve``."""

    name = "serve"
    help = "why a language-model server is slow: each request and engine step, from logs, metrics and client files"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        self._configured = parser.get_default  # a configuration comes into the parser later
        parser.usage = (
            "whystall serve report [options] PATH...\n"
            "       whystall serve what-if [options] PATH... --max-num-batched-tokens N\n"
            "       whystall serve watch [-o DIR] [--every S] [--report-every S] [--for S] [--json] [-f] ADDRESS\n"
            "       whystall serve run [-o DIR] [--every S] [--no-flags] [-f] -- vllm serve MODEL [ARGS...]"
        )
        parser.add_argument(
            "action",
            choices=("report", "what-if", "watch", "run"),
            help="report: explain a run from its files; what-if: replay it with other settings; watch: follow a server "
            "that runs; run: start a server, record it, and report when it stops",
        )
        parser.add_argument(
            "paths",
            nargs="+",
            metavar="PATH|ADDRESS|COMMAND",
            help="report, what-if: a folder with the files of a served run, or the files, found by content, plain or "
            "gzip; watch: the server's address (http://127.0.0.1:8000); run: its command, behind --",
        )
        parser.add_argument(
            "--every",
            metavar="S",
            help="run, watch: seconds between two readings of /metrics (1; at least 0.33)",
        )
        parser.add_argument(
            "--no-flags",
            action="store_const",
            const=True,
            help="run: add no flag and no variable to the server's command",
        )
        parser.add_argument("--report-every", metavar="S", help="watch: seconds between two reports (60; at least 1)")
        parser.add_argument("--for", metavar="S", help="watch: end after S seconds (else with Ctrl+C)")
        parser.add_argument("--json", action="store_const", const=True, help="report, what-if, watch: print as JSON")
        parser.add_argument(
            "--no-limits",
            action="store_const",
            const=True,
            help="report, what-if: read a packed file at any unpacked size",
        )
        parser.add_argument(
            "-o",
            "--output",
            action="append",
            default=[],
            metavar="FILE|DIR",
            help="report, what-if: also write .html, .json or .txt; run, watch: the folder of the run "
            "(whystall-runs/TIME-serve)",
        )
        output.add_force(parser)
        serve_flags.add_flags(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the verdict, the ledgers and the findings; 0, or the exit code of a server that it starts."""
        serve_flags.check(options, self._configured)
        if options.action == "run":
            from whystall.cli import serve_run

            return serve_run.run(options.paths, options, console)
        if options.action == "watch":
            from whystall.cli import serve_watch

            return serve_watch.run(options, console)
        if options.action == "what-if":
            from whystall.cli import serve_what_if

            return serve_what_if.run(options, console)
        output.targets(options)
        from whystall.report.serving_text import serving_document
        from whystall.serving.encoding import as_json
        from whystall.serving.outcome import SCHEMA, explain_run

        found = explain_run([Path(name) for name in options.paths], inputs.limits(options))
        output.print_and_write(options, console, lambda _: serving_document(found), lambda: as_json(found, SCHEMA))
        console.next(_next(found))
        return 0


def _next(found: Outcome) -> str:
    """The flags that would show more, or the way to prove the remedy."""
    if found.server_means is not None or found.by_server:
        return "put the result of the load's client beside these files, and read them again"
    missing = sorted(set(found.residuals.values()), key=len)
    if missing and found.blame == "unknown":
        return f"start the server with {missing[-1]}, repeat the load, and read the log here"
    return "repeat the same arrivals with the change, and compare both reports"
