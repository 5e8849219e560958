"""Findings as SARIF 2.1.0, the form in which code hosts and editors show results beside the code."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Final

import msgspec

from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.causes import Cause
from whystall.diagnosis.finding import CodeLocation, Finding, Gain
from whystall.report.findings import FindingView, findings_view
from whystall.report.names import clean
from whystall.report.registry import Options
from whystall.report.schema import Report

VERSION: Final = "2.1.0"
SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MOST_RESULTS: Final = 1_000
_MOST_EVENTS: Final = 5
_LEVELS: Final = {"critical": "error", "major": "warning", "minor": "note", "info": "none"}
_BASE: Final = "%SRCROOT%"  # viewers' name for the root of the checkout


def render_sarif(report: Report, options: Options | None = None) -> str:
    """The findings of a report as a SARIF log; code below the folder ``options.root`` is named relative to it.

    Same report, same bytes. Nothing but ASCII is written, so that no name changes how the log reads.
    """
    root = options.root if options else None
    found = report.findings[:_MOST_RESULTS]
    known = list(causes().values())
    listed = {cause.id for cause in known}
    # Causes that third parties name have no entry of their own to take the texts from.
    others = sorted({finding.id for finding in found} - listed)
    rules = [_rule(cause) for cause in known] + [{"id": clean(name, 120)} for name in others]
    number = {name: index for index, name in enumerate([*(cause.id for cause in known), *others])}
    views = findings_view(report, _MOST_RESULTS)
    words = iter(views.named), iter(views.notes)
    results = [_result(finding, next(words[finding.severity == "info"]), number[finding.id], root) for finding in found]
    run = {
        "tool": {"driver": _driver(report, rules)},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "warning", "message": {"text": message(clean(text, 600))}}
                    for text in report.source.warnings[:50]
                ],
            }
        ],
        "results": results,
        "properties": {
            "verdict": clean(f"{report.verdict.summary} {report.verdict.basis}".strip(), 600),
            "stepNs": report.verdict.step_ns,
            "plan": msgspec.to_builtins(report.plan),
            "fidelity": report.fidelity,
            "noise": report.noise,
            "notLookedFor": {one.id: one.missing_signals for one in report.abstained},
        },
    }
    return json.dumps({"$schema": SCHEMA, "version": VERSION, "runs": [run]}, indent=1) + "\n"


def message(text: str) -> str:
    r"""Text in which SARIF sees no link and no placeholder (SARIF 2.1.0, 3.11.5 and 3.11.6).

    >>> message("a[0] {x}")
    'a\\[0\\] {{x}}'
    """
    escaped = text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    return escaped.replace("{", "{{").replace("}", "}}")


def _driver(report: Report, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": "whystall", "version": clean(report.whystall, 40), "rules": rules}


def _rule(cause: Cause) -> dict[str, Any]:
    """Facts about a cause that hold for every run."""
    parts = [
        cause.meaning,
        f"How it is measured: {cause.measured}",
        f"What to do: {cause.remedy}",
        f"Risk: {cause.risk}" if cause.risk else None,
        f"It worked when: {cause.proof}",
    ]
    told = [part for part in parts if part]
    change = f"\n\n```python\n{cause.patch}\n```" if cause.patch else ""
    return {
        "id": cause.id,
        "name": "".join(word.capitalize() for word in cause.id.replace(".", "-").split("-")),
        "shortDescription": {"text": message(cause.title)},
        "fullDescription": {"text": message(cause.meaning)},
        "help": {"text": message("\n\n".join(told)), "markdown": "\n\n".join(told) + change},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["performance", cause.id.partition(".")[0]]},
    }


def _result(finding: Finding, view: FindingView, rule: int, root: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": clean(finding.id, 120),
        "ruleIndex": rule,
        "kind": "informational" if finding.severity == "info" else "fail",
        "level": _LEVELS[finding.severity],
        "message": {"text": message(_sentence(view, finding.gain))},
        "locations": [_location(place, root) for place in finding.code[:20]],
        "partialFingerprints": {"whystall/v1": _fingerprint(finding, root)},
        "properties": _properties(finding),
    }
    if view.gain and finding.gain is not None:
        result["rank"] = round(100 * (1 - 1 / max(finding.gain.expected, 1.0)), 1)
    return result


def _sentence(view: FindingView, gain: Gain | None) -> str:
    parts = [f"{view.title}."]
    if view.gain:
        what = "the recording" if gain is not None and gain.of == "recording" else "a step"
        parts.append(f"Without it {what} would be {view.gain} as fast, which saves {view.saves}.")
    if view.remedy:
        parts.append(view.remedy)
    return " ".join(parts)


def _properties(finding: Finding) -> dict[str, Any]:
    """The numbers behind a finding, as in ``report.json``."""
    raw: dict[str, Any] = msgspec.to_builtins(finding)
    for one in raw["evidence"]:
        one["events"] = one["events"][:_MOST_EVENTS]
    kept = ("severity", "confidence", "gain", "scope", "attributed_ns_per_step", "evidence", "rejected")
    named = {name: raw[name] for name in (*kept, "missing_signals", "could_be", "remedy", "verify", "instead")}
    return {"tags": ["performance"], **named}


def _location(place: CodeLocation, root: str | None) -> dict[str, Any]:
    """Place in the code; one outside a file, such as ``<string>``, has a name and no address."""
    if place.file.startswith("<") or not place.file:
        return {"logicalLocations": [{"fullyQualifiedName": clean(place.symbol or place.file, 200) or "unknown"}]}
    physical: dict[str, Any] = {"artifactLocation": artifact(place.file, root)}
    if place.line is not None and place.line > 0:
        physical["region"] = {"startLine": place.line}
        if place.symbol:
            physical["region"]["snippet"] = {"text": clean(place.symbol, 200)}
    return {"physicalLocation": physical}


def artifact(file: str, root: str | None = None) -> dict[str, str]:
    """The address of a file: relative where it was recorded so or lies below ``root``.

    >>> artifact("/home/me/job/my train.py", "/home/me/job")
    {'uri': 'my%20train.py', 'uriBaseId': '%SRCROOT%'}
    >>> artifact("/opt/lib/loader.py", "/home/me/job")
    {'uri': 'file:///opt/lib/loader.py'}
    """
    path = _path(file)
    if path.is_absolute() and not (root and path.is_relative_to(root)):
        return {"uri": path.as_uri()}
    if path.is_absolute() and root:
        path = path.relative_to(root)
    return {"uri": PurePosixPath("/", path.as_posix()).as_uri().removeprefix("file:///"), "uriBaseId": _BASE}


def _path(file: str) -> PurePath:
    """A path in the manner of the machine that recorded it, which need not be this one."""
    written = file[:1_000].encode("utf-8", "replace").decode().replace("\0", "")
    windows = PureWindowsPath(written)
    return windows if windows.drive and windows.root else PurePosixPath(written)


def _fingerprint(finding: Finding, root: str | None) -> str:
    """Equal for the same cause at the same code in another run, at any line and any cost."""
    first = finding.code[0] if finding.code else None
    place = [artifact(first.file, root)["uri"] if first.file else "", first.symbol or ""] if first else []
    told = json.dumps([finding.id, finding.scope.ranks, *place])
    return hashlib.sha256(told.encode()).hexdigest()[:32]
