"""``whystall memory``: who holds device memory at the peak, from a memory snapshot or from the events of traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from whystall.cli import inputs, output
from whystall.cli.progress import ReadingProgress
from whystall.errors import InputError, UsageError
from whystall.run_folder.layout import FLIGHT_SUFFIX

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from whystall.analysis.memory_results import MemoryPeak
    from whystall.cli.console import Console
    from whystall.memory.results import MemoryReport, RanksTogether, SnapshotComparison
    from whystall.trace.files import Limits

SCHEMA = "whystall.memory/1"
_SOME, _MANY = 200, 20_000  # lines that hold memory: to be read, and to be compared
_SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")


class Memory:
    """The verb ``memory``."""

    name = "memory"
    help = "who holds device memory at the peak, from a snapshot of torch's allocator or from traces"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument(
            "paths",
            nargs="+",
            metavar="PATH",
            help="memory snapshots (of all ranks), their folder, a run, or traces",
        )
        parser.add_argument("--against", metavar="SNAPSHOT", help="an earlier snapshot to compare with, line by line")
        parser.add_argument(
            "--device-memory",
            metavar="SIZE",
            help="all memory of the device, such as 79.1GiB (torch.cuda.get_device_properties(0).total_memory)",
        )
        parser.add_argument("--json", action="store_true", help=f"print as JSON (schema {SCHEMA})")
        parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache of parsed traces")
        parser.add_argument("--no-limits", action="store_true", help="read a packed file at any unpacked size")
        output.add_output(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the memory's content, writes it to ``-o``; 0."""
        output.targets(options)
        limits = inputs.limits(options)
        of_device = None if options.device_memory is None else inputs.n_bytes(options.device_memory, "--device-memory")
        snapshots, others = _sorted(options.paths)
        if of_device is not None and (options.against is not None or not snapshots):
            raise UsageError("--device-memory is of snapshots that are not compared: leave it out")
        if options.against is not None:
            return _compare(options, snapshots, limits, console)
        if snapshots and others:
            raise UsageError(f"{others[0]} is no memory snapshot: give snapshots or traces, not both")
        if not snapshots:
            return _of_traces(others, options, console)
        from whystall.memory.together import together
        from whystall.report.memory_text import memory_document

        reports = _reports(snapshots, limits, console, device_bytes=of_device)
        joint = together(reports)
        output.print_and_write(
            options, console, lambda width: memory_document(reports, width, joint), lambda: _json(reports, joint=joint)
        )
        console.next(f"whystall memory LATER --against {inputs.shell_quote([str(snapshots[0])])}")
        return 0


def _sorted(paths: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The snapshots, those in folders among them, and the other names."""
    snapshots: list[Path] = []
    others: list[str] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            named = (entry for entry in path.iterdir() if entry.name.endswith(_SUFFIXES) and entry.is_file())
            inside = sorted(entry for entry in named if not entry.name.endswith(FLIGHT_SUFFIX) and not _is_older(entry))
            found = [entry for entry in inside if _is_snapshot(entry)]
        else:
            found = [path] if path.is_file() and _is_snapshot(path) else []
        snapshots += found
        if not found:
            others.append(name)
    return snapshots, others


def _is_older(path: Path) -> bool:
    """Whether it is a run's snapshot of a window, and there is one of where that rank ran out of memory."""
    from whystall.run_folder.layout import oom_name, rank_file, snapshot_name

    file = rank_file(path.name)
    of_window = file is not None and path.name == snapshot_name(file.rank)
    return file is not None and of_window and path.with_name(oom_name(file.rank)).exists()


def _is_snapshot(path: Path) -> bool:
    from whystall.memory.read import is_pickle
    from whystall.trace.files import head_of

    try:
        return is_pickle(head_of(path).content)
    except InputError:
        return False  # reading it reports the error


def _reports(
    paths: Sequence[Path],
    limits: Limits | None,
    console: Console,
    holders: int = _SOME,
    device_bytes: int | None = None,
) -> list[MemoryReport]:
    """The report of each snapshot. An unreadable one is named, and ends the command only where it is the only one."""
    from whystall.memory.explain import explain
    from whystall.memory.read import read_snapshot

    reports = []
    for path in paths:
        try:
            reports.append(explain(read_snapshot(path, limits), holders, device_bytes))
        except InputError as error:
            if len(paths) == 1:
                raise
            console.note(f"left out: {error}")
    if not reports:
        raise InputError("none of the snapshots can be read")
    return reports


def _compare(options: Namespace, snapshots: Sequence[Path], limits: Limits | None, console: Console) -> int:
    from whystall.memory.comparison import compare_snapshots
    from whystall.report.memory_text import comparison_document

    before = Path(options.against)
    if len(snapshots) != 1 or len(options.paths) != 1:
        raise UsageError("--against wants one memory snapshot beside it")
    old, new = (_reports([path], limits, console, holders=_MANY)[0] for path in (before, snapshots[0]))
    found = compare_snapshots(old, new)
    output.print_and_write(
        options, console, lambda width: comparison_document(found, width), lambda: _json([old, new], found)
    )
    return 0


def _of_traces(paths: Sequence[str], options: Namespace, console: Console) -> int:
    """Prints memory from the memory events of traces."""
    import whystall
    from whystall.report.memory_trace_text import peaks_document

    with ReadingProgress(console) as progress:
        report = whystall.analyze(
            list(paths), cache=not options.no_cache, limits=inputs.limits(options), calibrate=False, progress=progress
        )
    peaks: list[MemoryPeak] = report.memory
    findings = [finding for finding in report.findings if finding.id.startswith("memory.")]
    if not peaks:
        raise InputError(
            "no memory events in these traces: record them with profile_memory=True, or whystall run --memory"
        )
    output.print_and_write(
        options,
        console,
        lambda width: peaks_document(peaks, width, findings),
        lambda: _text({"traces": _plain(peaks), "findings": _plain(findings)}),
    )
    console.next("torch.cuda.memory._record_memory_history(), then _dump_snapshot: a snapshot names the lines that ask")
    return 0


def _json(
    reports: Sequence[MemoryReport],
    compared: Sequence[SnapshotComparison] | None = None,
    joint: RanksTogether | None = None,
) -> str:
    from whystall.report.memory_ranks_text import told_together
    from whystall.report.memory_text import summarize

    files = [{"summary": summarize(report)} | _plain(report) for report in reports]
    beside = {} if joint is None else {"together": {"summary": told_together(joint)} | _plain(joint)}
    return _text({"files": files} | beside | ({} if compared is None else {"comparisons": _plain(compared)}))


def _plain(value: object) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


def _text(body: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode({"schema": SCHEMA} | body), indent=1).decode()
