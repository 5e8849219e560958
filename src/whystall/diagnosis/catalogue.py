"""All causes that ship with whystall, in the order of their families: what `whystall explain` and the pages list."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from whystall.diagnosis.causes import Cause
from whystall.diagnosis.rules import RULES


@cache
def causes() -> dict[str, Cause]:
    """All causes by id."""
    return {rule.cause.id: rule.cause for rule in RULES}


@cache
def found_in(cause: str) -> str:
    """Where a rule finds a cause: in a trace, in samples, or both; empty where no rule looks for it yet.

    >>> found_in("host.gc")
    'trace, samples'
    """
    return ", ".join(next((rule.found_in for rule in RULES if rule.cause.id == cause), ()))


def described(cause: Cause) -> dict[str, Any]:
    """A cause's entry for programs, with where it is found."""
    entry: dict[str, Any] = msgspec.to_builtins(cause)
    return {**entry, "found": found_in(cause.id)}
