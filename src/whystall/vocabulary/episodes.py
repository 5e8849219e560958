"""Occasional work of a loop beside training (checkpoints, evaluation, logging, metrics, compiling), known by names.

One table for recordings, stacks and lines of source, so that one stretch of time is one episode everywhere. It is read
within a running job as well: nothing but the standard library is imported.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from types import CodeType
from typing import Final, Literal

Episode = Literal["checkpoint", "evaluation", "logging", "metric", "compilation"]
SeenIn = Literal["event", "function", "library", "module", "text", "leaf"]


_OF_METRICS: Final = frozenset({"compute", "result", "update"})
"""Names of metrics' methods (torchmetrics, torcheval, Keras); others of such a class may be anything."""
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class EpisodeName:
    """Names of one kind that stand for an episode."""

    episode: Episode
    seen_in: SeenIn
    pattern: re.Pattern[str]
    but_not: re.Pattern[str] | None

    def names(self, text: str) -> bool:
        """Whether a text is such a name."""
        return bool(self.pattern.search(text)) and not (self.but_not and self.but_not.search(text))


@cache
def episode_names() -> tuple[EpisodeName, ...]:
    """The table."""
    rows = tomllib.loads((files("whystall.vocabulary") / "episodes.toml").read_text("utf-8"))["pattern"]
    return tuple(_row(row) for row in rows)


def _row(row: dict[str, str]) -> EpisodeName:
    flags = 0 if row.get("exact") else re.IGNORECASE
    but_not = re.compile(row["not"], flags) if "not" in row else None
    return EpisodeName(row["episode"], row["seen_in"], re.compile(row["pattern"], flags), but_not)  # type: ignore[arg-type]


@lru_cache(4096)  # a stack is looked at many times a second, and most of its functions are the same
def episode_of(text: str, seen_in: SeenIn) -> Episode | None:
    """The episode that a name stands for, or ``None``.

    >>> episode_of("save_checkpoint", "function"), episode_of("torch/utils/checkpoint.py(9): checkpoint", "event")
    ('checkpoint', None)
    """
    return next((row.episode for row in episode_names() if row.seen_in == seen_in and row.names(text)), None)


def episode_of_code(code: CodeType) -> Episode | None:
    """The episode that a running function stands for, by its name, or of a metric by its class's (Python 3.11)."""
    return _of_function(code.co_name, getattr(code, "co_qualname", ""))


@lru_cache(4096)
def _of_function(name: str, qualified: str) -> Episode | None:
    """The same by a function's name, and that with its class.

    >>> _of_function("compute", "EpochAUC.compute"), _of_function("compute", "Router.compute")
    ('metric', None)
    """
    owner = qualified.rpartition(".")[0].rpartition(".")[2]
    if name in _OF_METRICS and is_episode(_CAPITAL.sub("_", owner), "metric", "function"):
        return "metric"
    return episode_of(name, "function")


def is_episode(text: str, episode: Episode, seen_in: SeenIn) -> bool:
    """Whether a name stands for an episode; it may stand for another as well."""
    return any(row.names(text) for row in episode_names() if (row.episode, row.seen_in) == (episode, seen_in))
