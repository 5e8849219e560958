"""``whystall export``: the report or the trace's tables in a format that other tools read."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from whystall.cli import inputs, output
from whystall.cli.finished import told_by
from whystall.cli.progress import ReadingProgress
from whystall.cli.rendering import render
from whystall.errors import InputError, UsageError
from whystall.report.registry import (
    EXPORTS,
    CurvesFolder,
    Fill,
    ReportFormat,
    RunFile,
    TraceFile,
    TraceFolder,
    Tracker,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from whystall.analysis.rank_clocks import RankClock
    from whystall.cli.console import Console
    from whystall.trace.model import Trace

_OFFERED = tuple(export for export in EXPORTS if not isinstance(export, ReportFormat) or export.exported)


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
            choices=[export.name for export in _OFFERED],
            help="; ".join(f"{names}: {told}" for told, names in _told().items()),
        )
        parser.add_argument("-o", "--output", metavar="FILE|DIR|URI", help="where to write (default: stdout)")
        parser.add_argument(
            "--ranks",
            metavar="LIST|all",
            help="of these ranks (such as 0,7) one timeline on one clock, or to a .zip their traces as they are, which "
            "Perfetto merges; perfetto alone",
        )
        parser.add_argument(
            "--finding",
            metavar="ID",
            help="what was recorded around this finding (such as host.sync), with rows that say what it is: at most "
            "20 MB, however large the trace; perfetto alone",
        )
        output.add_redact(parser)
        inputs.add_reading(parser)
        output.add_force(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Writes the requested export; 0."""
        export = next(export for export in _OFFERED if export.name == options.format)
        if options.ranks is not None and export.name != "perfetto":
            raise UsageError(f"--ranks is for timelines (perfetto), not for {options.format}")
        if options.finding is not None and (options.ranks is not None or export.name != "perfetto"):
            told = "--ranks" if options.ranks is not None else options.format
            raise UsageError(f"--finding is for the timeline of one rank (perfetto), not for {told}")
        if options.redact and not isinstance(export, ReportFormat | CurvesFolder | Tracker):
            raise UsageError(f"--redact is for reports, not for {options.format}")
        if isinstance(export, ReportFormat):
            _export_report(options, console)
        elif isinstance(export, TraceFolder):
            folder = _output_folder(options)
            _write_folder(folder, export.files(_single_trace(options, console)), options, console)
        elif isinstance(export, CurvesFolder):
            folder = _output_folder(options)
            _write_folder(folder, export.files(told_by(export, options, console)), options, console)
            console.next(f"tensorboard --logdir {folder}")
        elif isinstance(export, Tracker):
            added, shown_by = export.log(told_by(export, options, console), _named(options))
            console.result(added)
            console.next(shown_by)
        elif isinstance(export, RunFile):
            _export_steps(export, options, console)
        else:
            _export_timeline(export, options, console)
        return 0


def _told() -> dict[str, str]:
    """Help on the formats, those of one kind together."""
    told: dict[str, list[str]] = {}
    for export in _OFFERED:
        told.setdefault(export.help, []).append(export.name)
    return {text: ", ".join(names) for text, names in told.items()}


def _export_report(options: Namespace, console: Console) -> None:
    path = _output_file(options)
    report = output.to_share(inputs.report_from(options.paths, options, console), options)
    text = render(report, options.format)
    if path is None:
        console.result(text)
    else:
        output.write_text(path, text, force=options.force)
        console.result(str(path))


def _named(options: Namespace) -> str | None:
    """The target of ``-o``; ``None`` for stdout."""
    return None if options.output == output.STDOUT else options.output


def _output_folder(options: Namespace) -> Path:
    if _named(options) is None:
        raise UsageError(f"{options.format} writes no single file: name a folder with -o")
    folder = Path(options.output)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder with -o")
    return folder


def _write_folder(folder: Path, files: dict[str, Fill], options: Namespace, console: Console) -> None:
    for name in files:
        if folder.exists():
            output.check_free(folder / name, force=options.force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror or error}") from None
    for name, fill in files.items():
        output.write(folder / name, fill, force=options.force)
        console.result(str(folder / name))


def _export_steps(export: RunFile, options: Namespace, console: Console) -> None:
    from whystall.run_folder.layout import rank_files
    from whystall.trace.samples import read_samples

    path = _output_file(options)
    if len(options.paths) > 1:
        raise UsageError(f"{options.format} exports one run at a time: {len(options.paths)} were given")
    files = rank_files(Path(options.paths[0]), "samples")
    if not files:
        raise InputError(f"{options.paths[0]} holds no samples of a watched run: name the folder of a `whystall run`")
    samples = [read_samples(file) for file in files]
    if path is None:
        export.write(samples, sys.stdout.buffer)
        return
    output.write(path, lambda stream: export.write(samples, stream), force=options.force)
    console.result(str(path))


def _export_timeline(export: TraceFile, options: Namespace, console: Console) -> None:
    path = _output_file(options)
    write: Callable[..., None]
    if options.finding is not None:
        write = _around_finding(options, console)
    elif options.ranks is not None:
        write = _aligned(options, console)
    else:
        write = partial(export.write, _single_trace(options, console))
    if path is None:
        write(sys.stdout.buffer, compress=False)
        return
    output.write(path, lambda stream: write(stream, compress=path.suffix == ".gz"), force=options.force)
    console.result(str(path))
    console.next(export.hint.format(path))


def _around_finding(options: Namespace, console: Console) -> Callable[..., None]:
    """A writer of a finding's evidence."""
    from whystall.view.evidence import cut_from
    from whystall.view.recorded import Recorded

    report = inputs.report_from(options.paths, options, console)
    ids = [finding.id for finding in report.findings]
    if options.finding not in ids:
        known = f"it has {', '.join(dict.fromkeys(ids))}" if ids else "it has none"
        raise UsageError(f"the report has no finding {options.finding!r}: {known}")
    recorded = Recorded(options.paths, report, cache=not options.no_cache, limits=inputs.limits(options))
    shown = cut_from(report, recorded.trace_of)(ids.index(options.finding))

    def write(stream: IO[bytes], *, compress: bool) -> None:
        stream.write(shown.gzipped if compress else shown.json)

    return write


def _aligned(options: Namespace, console: Console) -> Callable[..., None]:
    """A writer of the timeline of several ranks."""
    from whystall.analysis.communication import attendance_of
    from whystall.analysis.kernel_classes import classify
    from whystall.analysis.meetings import meetings
    from whystall.analysis.rank_clocks import rank_clocks
    from whystall.report.perfetto import write_chrome_traces
    from whystall.trace.recordings import read_recordings

    with ReadingProgress(console) as progress:
        found = read_recordings(
            options.paths, cache=not options.no_cache, limits=inputs.limits(options), progress=progress
        )
    traces = dict(zip(found.ranks, found.traces, strict=True))
    for sentence in (*found.failures, *found.notes):
        console.note(f"whystall: {sentence}")
    chosen = sorted(traces) if options.ranks == "all" else _numbers(options.ranks)
    if missing := [rank for rank in chosen if rank not in traces]:
        raise UsageError(f"no trace of rank {missing[0]}: there are ranks {', '.join(map(str, sorted(traces)))}")
    ranks = {rank: traces[rank] for rank in chosen}
    # All ranks set the clocks: two that never meet are set by those that meet both.
    attendances = [
        attendance_of(trace, rank, classify(trace.device_events).class_of) for rank, trace in sorted(traces.items())
    ]
    clocks = rank_clocks(attendances, meetings(attendances))
    if unset := [rank for rank in chosen[1:] if not clocks[rank].meetings]:
        console.note(f"whystall: rank {unset[0]} shares no collective with the others: it is drawn by its own clock")
    if options.output is not None and options.output.endswith(".zip"):
        return _archived(options, ranks, clocks)
    return partial(write_chrome_traces, ranks, clocks)


def _archived(options: Namespace, ranks: dict[int, Trace], clocks: dict[int, RankClock]) -> Callable[..., None]:
    """A writer of ranks' traces as they are, with a manifest of our clocks."""
    from whystall.trace.discovery import find_traces
    from whystall.trace.readers.registry import installed_readers
    from whystall.view.archive import write_archive

    readers = installed_readers()[0]
    found = [path for source in options.paths for path in find_traces(source, readers)]
    files = {rank: [path for path in found if path.name == trace.name] for rank, trace in ranks.items()}
    if unsure := [rank for rank, paths in files.items() if len(paths) != 1]:
        raise UsageError(f"rank {unsure[0]} is not one file of its own: write one rewritten file (-o FILE.json.gz)")

    def write(stream: IO[bytes], *, compress: bool) -> None:  # noqa: ARG001 - an archive is packed
        write_archive({rank: paths[0] for rank, paths in files.items()}, ranks, clocks, stream)

    return write


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(f"--ranks takes numbers such as 0,7, or all, not {text!r}")
    return sorted(map(int, parts))


def _output_file(options: Namespace) -> Path | None:
    """The file to write, free to be written; ``None`` for stdout."""
    if _named(options) is None:
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
        together = ", or give --ranks" if options.format == "perfetto" else ""
        raise UsageError(
            f"{options.format} exports one trace at a time, and {options.paths[0]} holds {len(found)}: "
            f"name one, such as {found[0]}{together}"
        )
    with ReadingProgress(console) as progress:
        return whystall.load(found[0], cache=not options.no_cache, limits=inputs.limits(options), progress=progress)
