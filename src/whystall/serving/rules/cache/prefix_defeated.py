"""Common text that the prefix cache cannot find, since the prompts differ before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.predictions import Prediction, Replayer
from whystall.serving.prefix_cache import PrefixCache
from whystall.serving.replay import Load
from whystall.serving.reuse import reuse

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Tokens that were there before, at another place."""
    seen = reuse(case.analysis)
    if seen is None or not seen.anywhere_tokens:
        return None
    missed = seen.anywhere_tokens - seen.found_tokens
    is_found = seen.found_tokens / seen.anywhere_tokens > CAUSE.threshold("most_found")
    if missed / seen.prompt_tokens < CAUSE.threshold("least_missed") or is_found or seen.leading_tokens > missed / 2:
        return None
    cost = case.mean(Part.OWN_PREFILL, Part.OTHERS_PREFILL, Part.STEP_WAIT, Part.QUEUE) * missed / seen.prompt_tokens
    return case.finding(
        CAUSE,
        f"The prompts are at fault: {missed / seen.prompt_tokens:.0%} of their tokens were in earlier prompts, and the "
        f"cache found {seen.found_tokens:,} of {seen.prompt_tokens:,} since each begins differently; computing them "
        f"again costs about {duration(int(cost))} a request.",
        cost,
        Evidence("prompt tokens", seen.prompt_tokens, "tokens"),
        Evidence("tokens of earlier prompts, at any place", seen.anywhere_tokens, "tokens"),
        Evidence("tokens found in the cache", seen.found_tokens, "tokens"),
        prediction=case.predict(lambda replayer: _common_first(replayer, case)),
    )


def _common_first(replayer: Replayer, case: Case) -> Prediction | None:
    """The same prompts with their common parts in front."""
    cache = PrefixCache(case.settings.block_tokens)
    ids = replayer.block_ids
    count: dict[int, int] = {}
    for one in ids:
        for block in set(one):
            count[block] = count.get(block, 0) + 1
    ordered = [sorted(one, key=lambda block: count[block] == 1) for one in ids]

    def moved(loads: tuple[Load, ...]) -> tuple[Load, ...]:
        return tuple(replace(load, blocks=tuple(cache.blocks(one))) for load, one in zip(loads, ordered, strict=True))

    return replayer.predict("the common part of prompts first", loads=moved)


RULE: Final = Rule(CAUSE, find)
