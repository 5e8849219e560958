"""Kinds of Python work, by the frames of a recording."""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib.resources import files


@cache
def _table() -> tuple[tuple[str, re.Pattern[str]], ...]:
    rows = tomllib.loads((files("whystall.vocabulary") / "python_work.toml").read_text("utf-8"))["row"]
    return tuple((row["kind"], re.compile(row["pattern"])) for row in rows)


@lru_cache(maxsize=1 << 16)
def work_of(frame: str) -> str | None:
    """The kind of work that a frame is known for; ``None`` where it is known for none.

    >>> work_of("torch/optim/adam.py(680): _fused_adam"), work_of("train.py(88): main")
    ('optimizer', None)
    """
    return next((kind for kind, pattern in _table() if pattern.search(frame)), None)
