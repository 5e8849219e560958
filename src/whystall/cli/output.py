"""Writing results to files: the extension picks the format, nothing is overwritten unasked, files appear whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

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
    """The format that the extension of ``path`` asks for. Raises ``UsageError`` where it asks for none."""
    from whystall.report import registry

    format_ = registry.format_of(path.name)
    if format_ is None:
        endings = ", ".join(one.suffixes[0] for one in registry.REPORT_FORMATS if one.suffixes)
        raise UsageError(f"cannot tell a format from {path}: end it in one of {endings}")
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
            raise UsageError(f"cannot tell a format from {path}: end it in one of {', '.join(_SUFFIXES)}")
        check_free(path, force=options.force)
    return paths


def print_and_write(
    options: Namespace, console: Console, document: Callable[[int], Document], json: Callable[[], str]
) -> None:
    """Prints a result as text, or with ``--json`` as that, and writes it where ``-o`` says.

    ``document`` makes it for lines of a width.
    """
    from whystall.report.document import as_text

    console.result(json() if options.json else as_text(document(console.width), console.width))
    for path in targets(options):
        if path.suffix == ".html":
            write_page(path, document)
        else:
            write_text(path, json() if path.suffix == ".json" else as_text(document(_TEXT_WIDTH), _TEXT_WIDTH))
        console.note(f"wrote {path}")


def write_page(path: Path, document: Callable[[int], Document]) -> None:
    """Writes a result as a page."""
    from whystall.report.document import PAGE_WIDTH
    from whystall.report.document_page import as_page

    write_text(path, as_page(document(PAGE_WIDTH)))


def check_free(path: Path, *, force: bool) -> None:
    """Raises ``UsageError`` where writing ``path`` would overwrite something or cannot work."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file in it")
    if path.exists() and not force:
        raise UsageError(f"{path} exists: add --force to overwrite it, or name another file")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: the folder {path.parent} does not exist")


def write_text(path: Path, text: str) -> None:
    """Writes ``text`` to ``path``, which then holds all of it or is untouched."""
    write(path, lambda stream: stream.write(text.encode("utf-8", "replace")))


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Writes to ``path`` what ``fill`` writes to the stream it is given; all of it or nothing."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            fill(stream)
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
