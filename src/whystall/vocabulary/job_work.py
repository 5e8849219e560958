"""Kinds of work outside of steps (weights, tokens, commands, compiling ...), by functions on a stack or a line's text.

The table is read within a running job as well: nothing but the standard library is imported.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

IMPORTS: Final = "imports"
WORKERS: Final = "workers"
WAITING: Final = "waiting"
"""The job waits for a loader's workers: they start, or are slower than the steps."""


@dataclass(frozen=True, slots=True)
class _Row:
    work: str
    module: re.Pattern[str] | None
    function: re.Pattern[str] | None
    text: re.Pattern[str] | None

    def names(self, module: str, function: str) -> bool:
        return (
            self.module is not None
            and self.module.match(module) is not None
            and (self.function is None or self.function.fullmatch(function) is not None)
        )


@cache
def _table() -> tuple[_Row, ...]:
    rows = tomllib.loads((files("whystall.vocabulary") / "job_work.toml").read_text("utf-8"))["row"]
    return tuple(_Row(row["work"], *(_pattern(row, name) for name in ("module", "function", "text"))) for row in rows)


def _pattern(row: dict[str, str], name: str) -> re.Pattern[str] | None:
    return re.compile(row[name]) if name in row else None


@cache
def works() -> tuple[str, ...]:
    """The kinds, imports first, each once and in order of precedence."""
    return tuple(dict.fromkeys((IMPORTS, *(row.work for row in _table()))))


@lru_cache(4096)  # a stack is looked at many times a second, and most of its functions are the same
def precedence_of(module: str, function: str) -> int | None:
    """The first row that names a function of a module, by its number; ``None``: it is known for nothing.

    >>> work_at(precedence_of("torch.serialization", "load"))
    'weights'
    >>> precedence_of("train", "main") is None
    True
    """
    return next((at for at, row in enumerate(_table()) if row.names(module, function)), None)


def work_at(precedence: int | None) -> str:
    """The kind of a row; empty for ``None``."""
    return _table()[precedence].work if precedence is not None else ""


@lru_cache(4096)
def work_of_text(text: str) -> str:
    """The kind of work that a line of source is known for; empty: none.

    >>> work_of_text("ids.extend(tokenizer.encode(line).ids)"), work_of_text("x = y")
    ('tokens', '')
    """
    return next((row.work for row in _table() if row.text is not None and row.text.search(text)), "")
