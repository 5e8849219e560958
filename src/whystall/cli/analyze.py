"""``whystall analyze``: traces in, verdict and ledger out."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import inputs, output
from whystall.cli.rendering import render
from whystall.errors import InputError
from whystall.run_folder.layout import REPORT_HTML, REPORT_JSON

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable, Sequence

    from whystall.cli.console import Console

FOLDER_FILES = (REPORT_HTML, REPORT_JSON, "report.md")  # the content of `-o FOLDER`


class Analyze:
    """The verb ``analyze``."""

    name = "analyze"
    help = "read traces and say where the time of a step went"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="trace, folder, glob, run folder or address")
        stdout = parser.add_mutually_exclusive_group()
        stdout.add_argument("--json", action="store_true", help="print the report as JSON (schema whystall.report/1)")
        stdout.add_argument("--markdown", action="store_true", help="print the report as Markdown")
        parser.add_argument(
            "-o",
            "--output",
            action="append",
            default=[],
            metavar="FILE|DIR",
            help="also write the report: .html, .json, .md or .txt, or a folder for the first three; may be repeated",
        )
        inputs.add_reading(parser)
        output.add_force(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the report, writes it to ``-o``; 0."""
        targets = _targets(options.output)
        for path, _ in targets:
            output.check_free(path, force=options.force)
        stored = [path for path, _ in targets if path.name == REPORT_JSON and _is_of(path.parent, options.paths)]
        held = _held(stored[0].parent) if stored else None
        started = time.monotonic()
        try:
            report = inputs.analyze(options.paths, options, console)
        except InputError as error:
            raise _with_verb(error, options.paths) from None
        console.detail(f"analysed {report.source.events} events in {time.monotonic() - started:.2f} s")
        console.result(render(report, _stdout_format(options), console))
        for path, format_ in targets:
            written = inputs.made_of(report, held) if path in stored else report
            output.write_text(path, render(written, format_), force=options.force)
            console.note(f"wrote {path}")
        console.next(_next_command(options.paths, [path for path, _ in targets]))
        return 0


def _with_verb(error: InputError, paths: Sequence[str]) -> InputError:
    """The error, or for a log of communication or of the compiler the verb that reads it."""
    from whystall.compilation.read import holds_log
    from whystall.fleet.logs import is_trace, read_logs

    path = Path(paths[0])
    if holds_log(path):
        given = inputs.shell_quote(paths)
        return InputError(f"{path.name} holds structured logs of torch's compiler, no trace: whystall compile {given}")
    if len(paths) != 1 or not path.is_file() or is_trace(path):
        return error
    try:
        kind = read_logs([path], {})[0].format
    except InputError:
        return error
    return InputError(f"{path.name} is a log of {kind}, no trace: whystall ranks {inputs.shell_quote(paths)}")


def _is_of(folder: Path, paths: list[str]) -> bool:
    """Whether a report in ``folder`` is of that folder."""
    return len(paths) == 1 and os.path.realpath(paths[0]) == os.path.realpath(folder)


def _held(folder: Path) -> str | None:
    from whystall.trace.fingerprint import fingerprint

    return fingerprint(folder)


def _stdout_format(options: Namespace) -> str:
    if options.json:
        return "json"
    return "markdown" if options.markdown else "terminal"


def _targets(names: Iterable[str]) -> list[tuple[Path, str]]:
    """The files to write with their formats; a folder (existing, or ending in a slash) stands for three."""
    targets: list[tuple[Path, str]] = []
    for name in names:
        path = Path(name)
        if path.is_dir() or name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            files = [path / file for file in FOLDER_FILES]
        else:
            files = [path]
        targets += [(file, output.format_of(file)) for file in files]
    return targets


def _next_command(paths: list[str], written: list[Path]) -> str:
    page = next((path for path in written if path.suffix == ".html"), None)
    if page is not None:
        return f"open {page} in a browser"
    given = inputs.shell_quote(paths)
    return f"whystall analyze -v {given} (all of it), or whystall report {given} -o report.html (the page)"
