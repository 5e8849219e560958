"""Evidence in the words of a finding: the quantity, its amount, and its unit."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.finding import Evidence, EvidenceEvent, Per

WITHIN: Final = "mostly within"
"""Before the annotation in which it happens."""


def time(what: str, ns: float, events: list[EvidenceEvent] | None = None, *, per: Per | None = None) -> Evidence:
    """A time, in nanoseconds."""
    return Evidence(what=what, value=int(ns), unit="ns", events=events or [], per=per)


def count(what: str, value: float, events: list[EvidenceEvent] | None = None, *, per: Per | None = None) -> Evidence:
    """A count."""
    whole = float(value).is_integer()
    number = int(value) if whole else round(float(value), 2)
    return Evidence(what=what, value=number, unit="", events=events or [], per=per)


def share(what: str, value: float) -> Evidence:
    """A share between 0 and 1."""
    return Evidence(what=what, value=round(float(value), 4), unit="share")


def times(what: str, value: float) -> Evidence:
    """A ratio to another amount."""
    return Evidence(what=what, value=round(float(value), 4), unit="x")


def text(what: str, value: str) -> Evidence:
    """A name."""
    return Evidence(what=what, value=value, unit="")


def size(what: str, amount: int, *, per: Per | None = None) -> Evidence:
    """An amount of memory."""
    return Evidence(what=what, value=int(amount), unit="bytes", per=per)


def bandwidth(what: str, bytes_per_s: float) -> Evidence:
    """A bandwidth."""
    return Evidence(what=what, value=round(float(bytes_per_s)), unit="bytes/s")
