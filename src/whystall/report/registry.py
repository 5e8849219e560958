"""The formats a report can be rendered in, in one tuple to read top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whystall.report.schema import Report, encode


@dataclass(frozen=True, slots=True)
class Renderer:
    """A format's name, the suffixes of its files, and the pure function that makes it."""

    format: str
    suffixes: tuple[str, ...]
    render: Callable[[Report], str]


def _terminal(report: Report) -> str:
    from whystall.report.terminal import render_terminal  # noqa: PLC0415 - rich loads only when it is asked for

    return render_terminal(report)


def _json(report: Report) -> str:
    return encode(report).decode()


def _markdown(report: Report) -> str:
    from whystall.report.markdown import render_markdown  # noqa: PLC0415

    return render_markdown(report)


def _html(report: Report) -> str:
    from whystall.report.html import render_html  # noqa: PLC0415 - jinja2 loads only when it is asked for

    return render_html(report)


RENDERERS: tuple[Renderer, ...] = (
    Renderer("terminal", (".txt",), _terminal),
    Renderer("json", (".json",), _json),
    Renderer("markdown", (".md", ".markdown"), _markdown),
    Renderer("html", (".html", ".htm"), _html),
)

FORMATS: tuple[str, ...] = tuple(renderer.format for renderer in RENDERERS)


def render(report: Report, format: str) -> str:  # noqa: A002 - the word that users know
    """The report in one of ``FORMATS``. Raises ``ValueError`` for any other."""
    for renderer in RENDERERS:
        if renderer.format == format:
            return renderer.render(report)
    raise ValueError(f"unknown format {format!r}: choose one of {', '.join(FORMATS)}")


def format_of(filename: str) -> str | None:
    """The format that a file's name asks for by its suffix.

    >>> format_of("out/report.html"), format_of("report.pdf")
    ('html', None)
    """
    lowered = filename.lower()
    return next((renderer.format for renderer in RENDERERS if lowered.endswith(renderer.suffixes)), None)
