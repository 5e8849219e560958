"""A rule: a cause, and the ways to find it, each with the signals that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from whystall.diagnosis.candidate import Candidate
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import Cause
from whystall.vocabulary.signals import Signal


@dataclass(frozen=True, slots=True)
class Finder:
    """One way to find a cause: a function that looks at a case, and the signals without which it cannot."""

    find: Callable[[Case], Iterable[Candidate]]
    needs: tuple[Signal, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause and its finders; without any it is explained and not looked for."""

    cause: Cause
    finders: tuple[Finder, ...] = ()

    @property
    def found_in(self) -> tuple[str, ...]:
        """Where the cause shows: in a trace, in samples, or in both."""
        places = ("trace" if "trace" in finder.needs else "samples" for finder in self.finders)
        return tuple(sorted(set(places), reverse=True))


RULES_GROUP: Final = "whystall.rules"
"""The entry point by which other packages bring rules: a `Rule`, or several. Each brings its own `Cause` with it."""
