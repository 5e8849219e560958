"""The frame of every page: style, scripts, policy, masthead; no remote address, at most 1 MB."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from whystall.report import format as fmt
from whystall.report.names import clean
from whystall.report.vocabulary import PARTS

MAX_BYTES = 1_000_000
_UNIT = re.compile(r"(?<=\d) (?=%|[KMGTPE]?i?B\b|[kMGTPE]?FLOP|[nµm]?s\b)")
_IN_SCRIPT = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def fill(
    template: str,
    *,
    title: str,
    source: Sequence[str],
    version: str,
    schema: str,
    scripts: Sequence[str],
    styles: Sequence[str] = ("page.css",),
    **content: object,
) -> str:
    """The page of a template that stands in the shell: same content, same bytes.

    ``source`` are phrases for the masthead; ``scripts`` and ``styles`` name the package's own files.
    """
    style = "".join(map(_asset, styles)) + _colours()
    texts = tuple(map(_asset, scripts))
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            source=source,
            version=version,
            schema=schema,
            style=Markup(style),  # noqa: S704 - the package's own files
            scripts=[Markup(text) for text in texts],  # noqa: S704 - the package's own files
            policy=_policy(style, texts),
            **content,
        )
    )


def _policy(style: str, scripts: Sequence[str]) -> str:
    """A Content-Security-Policy that runs this page's own style and scripts, by hash, and fetches nothing."""
    hashes = " ".join(map(_hash, scripts))
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {hashes}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def as_json(data: object) -> Markup:
    """Data for a script element that cannot end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.translate(_IN_SCRIPT))  # noqa: S704 - every character that HTML reads is escaped


def unbroken(text: str) -> str:
    """The text with numbers that stay on one line with their units."""
    return _UNIT.sub("\u00a0", text)


@cache
def _asset(name: str) -> str:
    text = resources.files("whystall.report").joinpath("templates", name).read_text(encoding="utf-8")
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"


@cache
def _colours() -> str:
    rules = (f".c-{part.key} {{ fill: {part.colour}; }} .i-{part.key} {{ fill: {part.ink}; }}\n" for part in PARTS)
    return "".join(rules)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("whystall.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": clean, "count": fmt.count, "duration": fmt.duration, "json": as_json, "share": fmt.share,
        "size": fmt.size, "unbroken": unbroken,
    }  # fmt: skip
    return environment
