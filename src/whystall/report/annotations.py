"""Findings as the lines that a GitHub workflow turns into annotations beside the code (workflow commands)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from whystall.report.findings import findings_view
from whystall.report.names import clean
from whystall.report.registry import Options
from whystall.report.sarif import artifact
from whystall.report.schema import Report

# A workflow shows ten of each level and step.
_MOST: Final = 30
_LEVELS: Final = {"critical": "error", "major": "warning", "minor": "notice"}
_IN_TEXT: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY: Final = {**_IN_TEXT, ":": "%3A", ",": "%2C"}


def render_annotations(report: Report, options: Options | None = None) -> str:
    """A line for each finding that is more than worth knowing, and one for the verdict.

    Code below the folder ``options.root`` is named relative to it; a finding in other code, or in an unknown place, has
    no place.
    """
    root = options.root if options else None
    lines = [f"::notice title=whystall::{_escaped(report.verdict.summary, _IN_TEXT)}"]
    found = [finding for finding in report.findings if finding.severity in _LEVELS][:_MOST]
    for finding, view in zip(found, findings_view(report, _MOST).named, strict=False):
        properties = {"title": f"{view.title}" + (f" ({view.gain})" if view.gain else "")}
        place = next((one for one in finding.code if one.line and not one.file.startswith("<")), None)
        if place is not None and (file := _below(place.file, root)):
            properties |= {"file": file, "line": str(place.line)}
        told = ",".join(f"{name}={_escaped(value, _IN_PROPERTY)}" for name, value in properties.items())
        text = _escaped(view.remedy or view.title, _IN_TEXT)
        lines.append(f"::{_LEVELS[finding.severity]} {told}::{text}")
    return "\n".join(lines) + "\n"


def _below(file: str, root: str | None) -> str | None:
    """The file as the checkout names it; ``None`` where it lies elsewhere."""
    if "uriBaseId" not in artifact(file, root):
        return None
    path = PurePosixPath(file.replace("\0", ""))
    return str(path.relative_to(root) if root and path.is_absolute() else path)


def _escaped(text: str, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(letter, letter) for letter in clean(text, 500))
