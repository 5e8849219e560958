"""From the paths on the command line to a report: traces are analysed, a stored report.json is read back."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli.progress import ReadingProgress
from whystall.errors import InputError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from whystall.cli.console import Console
    from whystall.report.schema import Report

REPORT_NAME = "report.json"
HEAD_BYTES = 256  # `schema` is the first key of a report


def add_reading(parser: ArgumentParser) -> None:
    """Declares the options of every verb that reads traces."""
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache of parsed traces")
    parser.add_argument(
        "--kernel-classes",
        metavar="FILE",
        help="TOML of further rules for kernel names, tried before those of whystall",
    )
    parser.add_argument(
        "--no-calibration", action="store_true", help="leave out what `whystall probe` measured on this machine"
    )


def analyze(paths: Sequence[str], options: Namespace, console: Console) -> Report:
    """The report on all of ``paths``. Raises ``InputError`` where none can be read."""
    import whystall

    with ReadingProgress(console) as progress:
        return whystall.analyze(
            list(paths),
            cache=not options.no_cache,
            kernel_classes=options.kernel_classes,
            calibrate=not options.no_calibration,
            progress=progress,
        )


def report_from(paths: Sequence[str], options: Namespace, console: Console) -> Report:
    """The report stored at the only path, or a new one of the traces at ``paths``."""
    stored = _stored_report(Path(paths[0])) if len(paths) == 1 else None
    if stored is None:
        return analyze(paths, options, console)
    console.detail(f"reading the report stored in {stored}")
    return _read_report(stored)


def _stored_report(path: Path) -> Path | None:
    """``path`` itself if it is a report, or the up-to-date one in the folder ``path``."""
    try:
        if path.is_dir():
            path = path / REPORT_NAME
            if not path.is_file() or not _is_newest(path):
                return None
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError:
        return None  # the analysis says what is wrong with it
    return path if b"whystall.report/" in head else None


def _is_newest(path: Path) -> bool:
    """Whether no trace beside ``path`` was changed after it."""
    modified = path.stat().st_mtime_ns
    traces = (name for pattern in ("*.json", "*.json.gz") for name in path.parent.glob(pattern))
    return all(trace.stat().st_mtime_ns <= modified for trace in traces)


def _read_report(path: Path) -> Report:
    import msgspec

    from whystall.report import schema

    try:
        return schema.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is no report that this whystall can read: {error}") from error


def shell_quote(paths: Sequence[str]) -> str:
    """``paths`` as they would be typed in a shell; a glob stays readable."""
    import shlex

    return " ".join(path if glob.has_magic(path) and " " not in path else shlex.quote(path) for path in paths)
