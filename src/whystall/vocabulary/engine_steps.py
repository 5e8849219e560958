"""Kinds of an inference engine's steps, by the names of their annotations."""

from __future__ import annotations

import re
import tomllib
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Literal

EngineStep = Literal["prefill", "decode", "mixed", "verify", "idle"]


@lru_cache(1 << 14)
def engine_step(name: str) -> EngineStep | None:
    """The kind of the engine step with this name; ``None`` if it names no engine step.

    >>> engine_step("execute_context_2(311)_generation_4(4)"), engine_step("step[DECODE bs=32]")
    ('mixed', 'decode')
    >>> engine_step("execute_context_0(0)_generation_0(0)"), engine_step("ProfilerStep#3")
    ('idle', None)
    """
    for pattern, words in _rows():
        found = pattern.match(name)
        if found is not None:
            return words.get(found["word"]) if "word" in found.groupdict() else _by_requests(found)
    return None


def _by_requests(found: re.Match[str]) -> EngineStep:
    prefills, decodes = int(found["prefills"][:9]), int(found["decodes"][:9])
    if prefills and decodes:
        return "mixed"
    return "prefill" if prefills else "decode" if decodes else "idle"


@cache
def _rows() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    text = (files("whystall.vocabulary") / "engine_steps.toml").read_text("utf-8")
    return [(re.compile(row["pattern"]), row.get("words", {})) for row in tomllib.loads(text)["row"]]
