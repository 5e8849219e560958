"""The formats a report can be rendered in, in one tuple to read top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whystall.errors import UsageError
from whystall.report.schema import Report, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a person wants to read the report; files take no notice of it."""

    width: int = 100
    colour: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class Renderer:
    """A format's name, the suffixes of its files, and the pure function that makes it."""

    format: str
    suffixes: tuple[str, ...]
    render: Callable[[Report, Options], str]


def _terminal(report: Report, options: Options) -> str:
    from whystall.report.terminal import render_terminal  # noqa: PLC0415 - rich loads only when it is asked for

    return render_terminal(report, width=options.width, colour=options.colour, verbose=options.verbose)


def _json(report: Report, _options: Options) -> str:
    return encode(report).decode()


def _markdown(report: Report, _options: Options) -> str:
    from whystall.report.markdown import render_markdown  # noqa: PLC0415

    return render_markdown(report)


def _html(report: Report, _options: Options) -> str:
    from whystall.report.html import render_html  # noqa: PLC0415 - jinja2 loads only when it is asked for

    return render_html(report)


RENDERERS: tuple[Renderer, ...] = (
    Renderer("terminal", (".txt",), _terminal),
    Renderer("json", (".json",), _json),
    Renderer("markdown", (".md", ".markdown"), _markdown),
    Renderer("html", (".html", ".htm"), _html),
)

FORMATS: tuple[str, ...] = tuple(renderer.format for renderer in RENDERERS)


def render(
    report: Report,
    format: str,  # noqa: A002 - the word that users know
    *,
    width: int = 100,
    colour: bool = False,
    verbose: bool = False,
) -> str:
    """The report in one of ``FORMATS``; the options are for the terminal. Raises ``UsageError`` for other formats."""
    options = Options(width=width, colour=colour, verbose=verbose)
    for renderer in RENDERERS:
        if renderer.format == format:
            return renderer.render(report, options)
    raise UsageError(f"unknown format {format!r}: choose one of {', '.join(FORMATS)}")


def format_of(filename: str) -> str | None:
    """The format that a file's name asks for by its suffix.

    >>> format_of("out/report.html"), format_of("report.pdf")
    ('html', None)
    """
    lowered = filename.lower()
    return next((renderer.format for renderer in RENDERERS if lowered.endswith(renderer.suffixes)), None)
