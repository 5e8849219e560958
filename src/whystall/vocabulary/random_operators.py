"""Operators that are no plain functions of their arguments' contents: drawn at random, or sized by content."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class RandomOperators(NamedTuple):
    """The names of the operators, and of the arguments that are probabilities.

    ``sized_by_content`` are operators whose results' sizes say something about the content.
    """

    names: frozenset[str]
    chance_by: frozenset[str]
    sized_by_content: frozenset[str]


@cache
def random_operators() -> RandomOperators:
    """The table.

    >>> "aten::randperm" in random_operators().names
    True
    """
    table = tomllib.loads((files("whystall.vocabulary") / "random_operators.toml").read_text("utf-8"))
    names, sized = (frozenset(f"aten::{name}" for name in table[key]) for key in ("names", "sized_by_content"))
    return RandomOperators(names, frozenset(table["chance_by"]), sized)
