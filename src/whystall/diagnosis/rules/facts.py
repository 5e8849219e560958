"""Evidence in the words of a finding."""

from __future__ import annotations

from whystall.diagnosis.finding import Evidence, EvidenceEvent


def time(what: str, ns: int, events: list[EvidenceEvent] | None = None) -> Evidence:
    """A time, in nanoseconds."""
    return Evidence(what=what, value=int(ns), unit="ns", events=events or [])


def count(what: str, value: float, events: list[EvidenceEvent] | None = None) -> Evidence:
    """A count."""
    whole = float(value).is_integer()
    return Evidence(what=what, value=int(value) if whole else round(value, 2), unit="", events=events or [])


def share(what: str, value: float) -> Evidence:
    """A share between 0 and 1."""
    return Evidence(what=what, value=round(value, 4), unit="share")


def text(what: str, value: str) -> Evidence:
    """A name."""
    return Evidence(what=what, value=value, unit="")


def size(what: str, amount: int) -> Evidence:
    """An amount of memory."""
    return Evidence(what=what, value=int(amount), unit="bytes")


def bandwidth(what: str, bytes_per_s: float) -> Evidence:
    """A bandwidth."""
    return Evidence(what=what, value=round(bytes_per_s), unit="bytes/s")
