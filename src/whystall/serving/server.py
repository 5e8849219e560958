"""The server that a replay plays: its settings, and the flags that set them. It imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

__all__ = ["REPLAYED", "Server", "Setting", "changed_server"]


@dataclass(frozen=True, slots=True)
class Server:
    """The settings that are played, with the client's limit of concurrent requests; ``None`` is without a bound."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    block_tokens: int = 16
    prefix_caching: bool = False
    max_concurrency: int | None = None


class Setting(NamedTuple):
    """A field of `Server` with its meaning; a switch takes no number."""

    field: str
    meaning: str
    is_switch: bool = False


REPLAYED: Final = {
    "--max-num-seqs": Setting("max_num_seqs", "maximum number of requests in a step"),
    "--max-num-batched-tokens": Setting("max_num_batched_tokens", "maximum number of tokens in a step"),
    "--num-gpu-blocks-override": Setting("kv_blocks", "number of blocks of the key-value cache"),
    "--max-concurrency": Setting("max_concurrency", "maximum number of requests that the client sends at a time"),
    "--enable-prefix-caching": Setting("prefix_caching", "keep computed prompts in the cache", is_switch=True),
}
"""Settings by their flags of ``vllm serve``, and of ``vllm bench serve`` for the client."""


def changed_server(server: Server, changes: Mapping[str, int | bool]) -> Server:
    """The server with other settings, by their flags.

    >>> changed_server(Server(), {"--num-gpu-blocks-override": 20}).kv_blocks
    20
    """
    fields: dict[str, Any] = {REPLAYED[flag].field: value for flag, value in changes.items()}
    return replace(server, **fields)
