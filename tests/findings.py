"""A finding with nothing but what a test is about."""

from __future__ import annotations

from typing import Any

from whystall.diagnosis.finding import Finding, Scope


def bare_finding(cause: str, **more: Any) -> Finding:
    """A major finding of a cause on rank 0, without gain, evidence, lines and remedy, unless ``more`` has them."""
    values: dict[str, Any] = {
        "title": cause,
        "severity": "major",
        "scope": Scope(ranks=[0], steps=[]),
        "attributed_ns_per_step": 1,
        "gain": None,
        "confidence": 1.0,
        "evidence": [],
        "code": [],
        "rejected": [],
        "missing_signals": [],
        "remedy": None,
        "verify": None,
    }
    return Finding(id=cause, **{**values, **more})
