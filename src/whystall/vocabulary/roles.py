"""Phases of a job of several roles, by the names of their marks: one table, with a source per row."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

Phase = Literal["rollout", "reward", "scoring", "training", "sync"]


@cache
def _patterns() -> tuple[tuple[Phase, re.Pattern[str]], ...]:
    rows = tomllib.loads((files("whystall.vocabulary") / "roles.toml").read_text("utf-8"))["pattern"]
    return tuple((row["role"], re.compile(row["pattern"], re.IGNORECASE)) for row in rows)


def phase_named(text: str) -> Phase | None:
    """The phase that a mark stands for; ``None`` for every other name.

    >>> [phase_named(text) for text in ("generate_sequences", "actor_update", "update_weights", "forward")]
    ['rollout', 'training', 'sync', None]
    """
    return next((role for role, pattern in _patterns() if pattern.fullmatch(text.strip())), None)
