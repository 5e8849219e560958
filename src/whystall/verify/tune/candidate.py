"""A setting to try, and the most that it could gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from whystall.verify.tune.results import Value

# A group whose whole time would gain less is not tried.
LEAST_GAIN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting to try: ``most`` is the greatest speed-up it could bring, ``work`` how much more a step then does."""

    name: str
    value: Value
    most: float
    work: float = 1.0


def gain(share: float) -> float:
    """The speed-up if a part of a step took no time.

    >>> gain(0.5)
    2.0
    """
    return 1 / max(1 - min(share, 0.99), 0.01)


def is_worth_it(share: float) -> bool:
    """Whether a part of a step is large enough for a trial."""
    return gain(share) >= 1 + LEAST_GAIN
