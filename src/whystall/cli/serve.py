"""``whystall serve``: why a language-model server is slow, from files of a served run, or from one that it starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output, serve_flags
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.serving.outcome import Outcome

SCHEMA = "whystall.serving/1"


class Serve:
    """The verb ``serve``."""

    name = "serve"
    help = "why a language-model server is slow: each request and engine step, from logs, metrics and client files"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.usage = (
            "whystall serve report [options] PATH...\n"
            "       whystall serve what-if [options] PATH... --max-num-batched-tokens N\n"
            "       whystall serve watch [-o DIR] [--every S] [--report-every S] [--for S] [-f] URL\n"
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
            metavar="PATH|URL|COMMAND",
            help="report, what-if: a folder with the files of a served run, or the files, found by content, plain or "
            "gzip; watch: the server's address; run: its command, after --",
        )
        parser.add_argument(
            "--every",
            default="1",
            metavar="S",
            help="run, watch: seconds between two readings of /metrics (1; at least 0.33)",
        )
        parser.add_argument(
            "--no-flags", action="store_true", help="run: do not add the flag that logs each engine step"
        )
        parser.add_argument(
            "--report-every", default="60", metavar="S", help="watch: seconds between two reports (60; at least 1)"
        )
        parser.add_argument("--for", dest="seconds", metavar="S", help="watch: end after S seconds (else with Ctrl+C)")
        parser.add_argument("--json", action="store_true", help=f"print as JSON (schema {SCHEMA})")
        parser.add_argument("--no-limits", action="store_true", help="read a packed file at any unpacked size")
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
        if options.action == "run":
            from whystall.cli import serve_run

            if options.json or options.no_limits:
                raise UsageError("--json and --no-limits belong to `serve report DIR`, when the server has stopped")
            return serve_run.run(options.paths, options, console)
        if options.action == "watch":
            from whystall.cli import serve_watch

            return serve_watch.run(options, console)
        if options.action == "what-if":
            from whystall.cli import serve_what_if

            return serve_what_if.run(options, console)
        flag = next(iter(serve_flags.values(options)), serve_flags.refused(options))
        if flag is not None:
            raise UsageError(f"{flag} belongs to `serve what-if DIR`: a report is on the run as it was")
        output.targets(options)
        from whystall.report.serving_text import serving_document
        from whystall.serving.outcome import as_json, explain_run

        found = explain_run([Path(name) for name in options.paths], inputs.limits(options))
        output.print_and_write(options, console, lambda _: serving_document(found), lambda: as_json(found))
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
