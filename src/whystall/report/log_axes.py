"""Logarithmic axes of a drawing: where values lie, in percent of its frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

_MOST_TICKS = 7
_TOP, _BOTTOM = 4.0, 90.0  # percent of the frame's height that the axes span; numbers stand below
_LEFT, _RIGHT = 4.0, 96.0
_LARGEST = 1e30  # no measurement lies beyond

Base = Literal[2, 10]
_LOGARITHM: Mapping[Base, Callable[[float], float]] = MappingProxyType({2: math.log2, 10: math.log10})
"""Those that are exact at powers of their base."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A power on an axis, with its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A span of whole powers of ``base``, mapped to percent of the frame."""

    first: int
    last: int
    start: float
    end: float
    base: Base = 10

    @classmethod
    def across(cls, values: Sequence[float], base: Base = 10) -> LogAxis:
        """The axis from left to right on which these values, all above 0, lie."""
        return cls(*_span(values, base), _LEFT, _RIGHT, base)

    @classmethod
    def up(cls, values: Sequence[float], base: Base = 10) -> LogAxis:
        """The axis from below to above on which these values, all above 0, lie."""
        return cls(*_span(values, base), _BOTTOM, _TOP, base)

    def place(self, value: float) -> float:
        """Where the value lies; at an end of the axis where it lies beyond."""
        share = (_LOGARITHM[self.base](value) - self.first) / (self.last - self.first)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, label: Callable[[int], str]) -> tuple[Tick, ...]:
        """At most eight powers, evenly apart; ``label`` puts a power in words."""
        every = -(-(self.last - self.first) // _MOST_TICKS)
        powers = range(self.first, self.last + 1, every)
        return tuple(Tick(self.place(float(self.base) ** power), label(power)) for power in powers)


def _span(values: Sequence[float], base: Base) -> tuple[int, int]:
    powers = [_LOGARITHM[base](min(max(value, 1 / _LARGEST), _LARGEST)) for value in values]
    first, last = math.floor(min(powers)), math.ceil(max(powers))
    return first, max(last, first + 1)
