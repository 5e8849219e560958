"""What whystall says of a job: the command line is run, and its JSON read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.accuracy.invariants import broken

ALARMING = frozenset({"minor", "major", "critical"})
WHYSTALL = (sys.executable, "-m", "whystall")


@dataclass(frozen=True, slots=True)
class Named:
    """One finding."""

    id: str
    severity: str
    floor: float | None
    expected: float | None
    ceiling: float | None
    confidence: float | None
    ranks: tuple[int, ...]
    could_be: tuple[str, ...] = ()
    """Causes that it is said not to be told from while a signal is missing."""

    @property
    def alarming(self) -> bool:
        """Whether it asks to be acted upon."""
        return self.severity in ALARMING


@dataclass(frozen=True, slots=True)
class Said:
    """A report's verdict and findings; ``failure`` says why there is none."""

    cause: str | None
    findings: tuple[Named, ...]
    summary: str = ""
    failure: str = ""
    report: Any = None
    broken: tuple[str, ...] = ()
    """What does not hold of the report that holds of every report."""


def analyze(paths: Sequence[Path], *, command: Sequence[str] = WHYSTALL, timeout_s: float = 300) -> Said:
    """``whystall analyze`` on traces or folders."""
    line = [*command, "analyze", *map(str, paths), "--json", "--no-cache", "-q"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return Said(None, (), failure=f"no answer in {timeout_s:.0f} s")
    if done.returncode != 0:
        return Said(None, (), failure=done.stderr.strip()[-300:] or f"exit code {done.returncode}")
    report = json.loads(done.stdout)
    return replace(read(report), broken=broken(report))


def read(report: dict[str, Any]) -> Said:
    """The verdict and the findings of a report."""
    verdict = report.get("verdict") or {}
    findings = tuple(_named(finding) for finding in report.get("findings") or ())
    return Said(verdict.get("cause"), findings, verdict.get("summary") or "", report=report)


def _named(finding: dict[str, Any]) -> Named:
    gain = finding.get("gain") or {}
    scope = finding.get("scope") or {}
    return Named(
        finding["id"],
        finding.get("severity") or "info",
        gain.get("floor"),
        gain.get("expected"),
        gain.get("ceiling"),
        finding.get("confidence"),
        tuple(scope.get("ranks") or ()),
        tuple(finding.get("could_be") or ()),
    )
