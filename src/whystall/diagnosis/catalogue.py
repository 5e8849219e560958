"""All causes that ship with whystall, in the order of their families: the list of `whystall explain` and the pages."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from whystall.diagnosis.causes import Cause
from whystall.diagnosis.rule import Rule
from whystall.diagnosis.rules import RULES


@cache
def causes() -> dict[str, Cause]:
    """All causes by id."""
    return {rule.cause.id: rule.cause for rule in RULES}


def found_in(rule: Rule) -> str:
    """Where a rule finds its cause: in a trace, in samples, or both; empty where it does not look for it yet.

    >>> [found_in(rule) for rule in RULES if rule.cause.id == "host.gc"]
    ['trace, samples']
    """
    return ", ".join(rule.found_in)


def described(rule: Rule) -> dict[str, Any]:
    """A cause's entry for programs, with where it is found."""
    entry: dict[str, Any] = msgspec.to_builtins(rule.cause)
    return {**entry, "found": found_in(rule)}
