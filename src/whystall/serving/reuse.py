"""How much of the prompts was computed before, by the hashes of the arrivals: anywhere, as a prefix, in full blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystall.serving.prefix_cache import HASHED_TOKENS, PrefixCache
from whystall.serving.run_analysis import Analysis

__all__ = ["Reuse", "reuse"]


@dataclass(frozen=True, slots=True)
class Reuse:
    """Tokens of prompts that earlier prompts had: at any place, from the beginning on, there in full blocks; found."""

    prompt_tokens: int
    anywhere_tokens: int
    leading_tokens: int
    in_blocks_tokens: int
    found_tokens: int


def reuse(analysis: Analysis) -> Reuse | None:
    """The reuse in a run; ``None`` where arrivals have no hashes, or the cache's finds were not counted."""
    run = analysis.run
    found = run.counted("prefix_cache_hits")
    if run.client is None or found is None or not run.client.positions:
        return None
    if run.client.positions[-1] >= len(run.arrivals) or not any(one.block_ids for one in run.arrivals):
        return None
    ids = [run.arrivals[place].block_ids for place in run.client.positions]
    sizes = [one.input_tokens for one in run.client.requests]
    fine, blocks = PrefixCache(HASHED_TOKENS), PrefixCache(analysis.settings.block_tokens)
    seen: set[int] = set()
    anywhere = leading = in_blocks = 0
    for one, size in zip(ids, sizes, strict=True):
        whole = _whole(one, size)
        anywhere += HASHED_TOKENS * sum(block in seen for block in whole)
        seen.update(whole)
        leading += _hits(fine, whole, size)
        in_blocks += _hits(blocks, whole, size)
    return Reuse(sum(sizes), anywhere, leading, in_blocks, int(found))


def _whole(ids: Sequence[int], size: int) -> Sequence[int]:
    """The hashes that stand for sixteen tokens; the last one may stand for fewer."""
    return ids[: size // HASHED_TOKENS]


def _hits(cache: PrefixCache, ids: Sequence[int], size: int) -> int:
    blocks = cache.blocks(ids)
    hits = cache.hit_tokens(blocks, size)
    cache.add(blocks, size)
    return hits
