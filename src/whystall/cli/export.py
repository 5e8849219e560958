"""``whystall export``: the report or the trace's tables in a format that other tools read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from whystall.cli import inputs, output
from whystall.cli.progress import ReadingProgress
from whystall.cli.rendering import render
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.cli.output import Format
    from whystall.trace.model import Trace

ReportFormat = Literal["json", "markdown", "html"]
TableFormat = Literal["csv", "parquet"]


class Export:
    """The verb ``export``."""

    name = "export"
    help = "write the report, the tables or the timeline for other tools"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument("paths", nargs="+", metavar="PATH", help="trace, folder, glob, run folder or report.json")
        parser.add_argument(
            "--format",
            required=True,
            choices=[*get_args(ReportFormat), "sarif", *get_args(TableFormat), "perfetto"],
            help="json, markdown, html: the report; sarif: its findings for code hosts and editors; csv, parquet: one file per table of the trace, into a folder; "
            "perfetto: a Chrome trace without metadata, gzipped if the output ends in .gz",
        )
        parser.add_argument("-o", "--output", metavar="FILE|DIR", help="where to write (default: stdout)")
        inputs.add_reading(parser)
        output.add_force(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Writes what was asked for; 0."""
        if options.format == "sarif" or options.format in get_args(ReportFormat):
            _export_report(options, console)
        elif options.format in get_args(TableFormat):
            _export_tables(options, console)
        else:
            _export_timeline(options, console)
        return 0


def _export_report(options: Namespace, console: Console) -> None:
    path = _output_file(options)
    report = inputs.report_from(options.paths, options, console)
    if options.format == "sarif":
        from whystall.report.sarif import render_sarif

        text = render_sarif(report, root=str(Path.cwd()))
    else:
        text = render(report, cast("Format", options.format))
    if path is None:
        console.result(text)
    else:
        output.write_text(path, text)
        console.result(str(path))


def _export_tables(options: Namespace, console: Console) -> None:
    from whystall.report.frames import table_files, write_table

    if options.output in (None, output.STDOUT):
        raise UsageError(f"{options.format} writes one file per table: name a folder with -o")
    folder = Path(options.output)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder with -o")
    trace = _single_trace(options, console)
    files = table_files(trace, options.format)
    for name in files:
        if (folder / name).exists():
            output.check_free(folder / name, force=options.force)
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in files.items():
        output.write(folder / name, lambda stream, frame=frame: write_table(frame, options.format, stream))  # type: ignore[misc]
        console.result(str(folder / name))


def _export_timeline(options: Namespace, console: Console) -> None:
    from whystall.report.perfetto import write_chrome_trace

    path = _output_file(options)
    trace = _single_trace(options, console)
    if path is None:
        write_chrome_trace(trace, sys.stdout.buffer)
        return
    output.write(path, lambda stream: write_chrome_trace(trace, stream, compress=path.suffix == ".gz"))
    console.result(str(path))
    console.next(f"open {path} at https://ui.perfetto.dev (it stays in your browser)")


def _output_file(options: Namespace) -> Path | None:
    """The file to write, free to be written; ``None`` for stdout."""
    if options.output in (None, output.STDOUT):
        return None
    path = Path(options.output)
    output.check_free(path, force=options.force)
    return path


def _single_trace(options: Namespace, console: Console) -> Trace:
    import whystall
    from whystall.trace.discovery import find_traces
    from whystall.trace.readers.registry import installed_readers

    if len(options.paths) > 1:
        raise UsageError(f"{options.format} exports one trace at a time: {len(options.paths)} were given")
    found = find_traces(options.paths[0], installed_readers()[0])
    if len(found) > 1:
        raise UsageError(
            f"{options.format} exports one trace at a time, and {options.paths[0]} holds {len(found)}: name one, such as {found[0]}"
        )
    with ReadingProgress(console) as progress:
        return whystall.load(found[0], cache=not options.no_cache, progress=progress)
