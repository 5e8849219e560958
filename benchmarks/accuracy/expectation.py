"""What is known of a job before it is judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LIMITS = frozenset({"compute.at-limit", "inference.bandwidth-bound-decode"})
"""Verdicts that say that nothing is wrong."""
_AS_GOOD = 0.97
"""A cause whose cure gains that share of the best cure's gain may be named first as well."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A job's causes with what curing each gains (a ratio of mean steady step times), the largest first."""

    name: str
    gains: Mapping[str, float | None] = field(default_factory=dict)
    """``None`` where the cause is known and its gain is not."""
    accepted: tuple[str, ...] = ()
    resists: tuple[str, ...] = ()
    rank: int | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.gains

    @property
    def first(self) -> frozenset[str]:
        """The ids that may be named first."""
        known = {cause: gain for cause, gain in self.gains.items() if gain is not None}
        best = max(known.values(), default=1.0)
        near = {cause for cause in self.gains if (self.gains[cause] or best) >= best * _AS_GOOD}
        return frozenset(near | set(self.accepted))

    @property
    def all_ids(self) -> frozenset[str]:
        """Every id that is no false alarm."""
        return frozenset({*self.gains, *self.accepted})


def from_folder(folder: Path) -> Expectation:
    """The expectation beside simulated traces."""
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    return Expectation(
        truth["name"],
        {cause: truth["removed_speedup"][cause] for cause in truth["causes"]},
        tuple(truth["accepted"]),
        tuple(truth["resists"]),
        truth["rank"],
    )
