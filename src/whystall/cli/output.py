"""Writing results to files: the extension picks the format, nothing is overwritten unasked, files appear whole."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

from whystall.disk import writing
from whystall.disk.writing import IsOurs, OccupiedError, Over, obstacle
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from whystall.cli.console import Console
    from whystall.report.document import Document
    from whystall.report.schema import Report

STDOUT = "-"
_SUFFIXES = (".html", ".json", ".txt")
_TEXT_WIDTH = 100
_LONGEST_SHOWN = 200


def add_force(parser: ArgumentParser) -> None:
    """Declares ``-f/--force``."""
    parser.add_argument("-f", "--force", action="store_true", help="overwrite files that exist")


def add_redact(parser: ArgumentParser) -> None:
    """Declares ``--redact``."""
    parser.add_argument(
        "--redact",
        action="store_true",
        help="for sharing outside: replace the names of files, functions, modules and hosts, leave out lines of code",
    )


def to_share(report: Report, options: Namespace) -> Report:
    """The report as it may be shared: without its names where ``--redact`` was given."""
    if not options.redact:
        return report
    from whystall.report.redaction import redacted

    return redacted(report)


def format_of(path: Path) -> str:
    """The format of ``path``'s extension. Raises ``UsageError`` for an unknown one."""
    from whystall.report import registry

    format_ = registry.format_of(path.name)
    if format_ is None:
        endings = ", ".join(one.suffixes[0] for one in registry.REPORT_FORMATS if one.suffixes)
        raise UsageError(f"the name {path} does not imply a format: end it in one of {endings}")
    return format_


def add_output(parser: ArgumentParser) -> None:
    """Declares ``-o/--output`` of a verb whose result is a document, and ``-f/--force``."""
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="FILE", help="also write .html, .json or .txt"
    )
    add_force(parser)


def targets(options: Namespace) -> list[Path]:
    """The files that ``-o`` names. Raises ``UsageError`` where one has no known ending or cannot be written."""
    paths = [Path(name) for name in options.output]
    for path in paths:
        if path.suffix not in _SUFFIXES:
            raise UsageError(f"no format is known for the name {path}: end it in one of {', '.join(_SUFFIXES)}")
        check_free(path, force=options.force)
    return paths


def print_and_write(
    options: Namespace, console: Console, document: Callable[[int], Document], json: Callable[[], str]
) -> None:
    """Prints a result as text, or with ``--json`` as that, and writes it to ``-o``.

    ``document`` makes it for lines of a width.
    """
    from whystall.report.document import as_text

    console.result(json() if options.json else as_text(document(console.width), console.width))
    for path in targets(options):
        if path.suffix == ".html":
            write_page(path, document, force=options.force)
        else:
            text = json() if path.suffix == ".json" else as_text(document(_TEXT_WIDTH), _TEXT_WIDTH)
            write_text(path, text, force=options.force)
        console.note(f"wrote {path}")


def write_page(path: Path, document: Callable[[int], Document], *, force: bool) -> None:
    """Writes a result as a page."""
    from whystall.report.document import PAGE_WIDTH
    from whystall.report.document_page import as_page

    write_text(path, as_page(document(PAGE_WIDTH)), force=force)


def check_free(path: Path, *, force: bool) -> None:
    """Raises ``UsageError`` where writing ``path`` would overwrite something or cannot work."""
    try:
        why = obstacle(path, _over(force=force))
        has_folder = path.parent.is_dir()
    except (OSError, ValueError) as error:  # a name too long, a loop of links, a null character
        raise UsageError(_unwritable(path, error)) from None
    if why is not None:
        raise UsageError(_taken(path, why))
    if not has_folder:
        raise UsageError(f"cannot write {path}: the folder {path.parent} does not exist")


def check_own(path: Path, is_ours: IsOurs) -> None:
    """Raises ``UsageError`` where something is at ``path`` that whystall did not write."""
    try:
        why = obstacle(path, Over.OUR_OWN, is_ours)
    except (OSError, ValueError) as error:
        raise UsageError(_unwritable(path, error)) from None
    if why is not None:
        raise UsageError(_taken(path, why))


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Writes ``text`` to ``path``, which then holds all of it or is untouched."""
    write(path, lambda stream: stream.write(text.encode("utf-8", "replace")), force=force)


def write(path: Path, fill: Callable[[IO[bytes]], object], *, force: bool) -> None:
    """Writes to ``path`` the output of ``fill``; all of it or nothing.

    Raises ``UsageError`` where something is at ``path``, and with ``force`` where that is no regular file.
    """
    place(path, fill, over=_over(force=force))


def write_own(path: Path, text: str) -> None:
    """Writes ``text`` over a file of ours, such as the report in a run folder."""
    place(path, lambda stream: stream.write(text.encode("utf-8", "replace")), over=Over.OUR_OWN)


def place(path: Path, fill: Callable[[IO[bytes]], object], *, over: Over, is_ours: IsOurs | None = None) -> None:
    """Writes a file (`whystall.disk.writing.write`). Raises ``UsageError`` where it cannot be written."""
    try:
        writing.write(path, fill, over=over, is_ours=is_ours)
    except OccupiedError as error:
        raise UsageError(_taken(path, str(error.strerror))) from None
    except (OSError, ValueError) as error:
        raise UsageError(_unwritable(path, error)) from error


def _over(*, force: bool) -> Over:
    return Over.A_FILE if force else Over.NOTHING


def _taken(path: Path, why: str) -> str:
    if why == "exists":
        return f"{path} exists: add --force to overwrite it, or name another file"
    if why == "is a folder":
        return f"{path} is a folder: name a file in it"
    return f"{path} {why}: it is left as it is, name another file"


def _unwritable(path: Path, error: Exception) -> str:
    name = str(path)
    shown = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..."
    return f"cannot write {shown}: {getattr(error, 'strerror', None) or error}"
