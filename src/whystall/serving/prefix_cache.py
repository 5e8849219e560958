"""The prefix cache of vLLM V1, without eviction: full blocks only, and never the whole prompt.

`v1/core/kv_cache_manager.py`, 0.32: the last token is always computed; a block enters the cache once it is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

HASHED_TOKENS: Final = 16
"""Tokens for which one hash of an arrival stands (Mooncake's traces)."""


class PrefixCache:
    """Blocks of prompts that were computed before."""

    def __init__(self, block_tokens: int | None) -> None:
        usable = block_tokens is not None and block_tokens % HASHED_TOKENS == 0
        self._hashes = block_tokens // HASHED_TOKENS if usable and block_tokens is not None else 0
        self._tokens = block_tokens or 0
        self._seen: set[int] = set()

    @property
    def block_tokens(self) -> int:
        """Tokens of a block; 0 where they are not known."""
        return self._tokens

    def blocks(self, ids: Sequence[int]) -> list[int]:
        """A number for each full block of a prompt, which stands for all tokens up to its end."""
        if not self._hashes:
            return []
        found: list[int] = []
        before = 0
        for start in range(0, len(ids) - self._hashes + 1, self._hashes):
            before = hash((before, *ids[start : start + self._hashes]))
            found.append(before)
        return found

    def hit_tokens(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        """Tokens of a prompt that need not be computed."""
        most = max(prompt_tokens - 1, 0) // self._tokens if self._tokens else 0
        hits = 0
        for block in blocks[:most]:
            if block not in self._seen:
                break
            hits += 1
        return hits * self._tokens

    def add(self, blocks: Sequence[int], computed_tokens: int) -> None:
        """Takes the full blocks among a prompt's first ``computed_tokens``."""
        if self._tokens:
            self._seen.update(blocks[: computed_tokens // self._tokens])
