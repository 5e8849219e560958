"""The server's flags that ``whystall serve what-if`` knows, and those for which a replay has no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

REPLAYED: Final = {
    "--max-num-seqs": "the most requests in a step",
    "--max-num-batched-tokens": "the most tokens in a step",
    "--num-gpu-blocks-override": "the blocks of the key-value cache",
    "--max-concurrency": "the most requests that the load's client has under way",
}
"""Flags of ``vllm serve`` and ``vllm bench serve`` that take a number, each an option of the same name."""
CACHING: Final = "--enable-prefix-caching"

_COST: Final = "it changes the time of a step, which only a run with it measures"
_MEMORY: Final = "it changes the number of cache blocks, which the server counts at its start: give that number itself"
_RULE: Final = "the replay has no such rule"
_AROUND: Final = "the replay begins at the scheduler, and keeps the recorded times before and after it"
NOT_REPLAYED: Final = {
    "--enforce-eager": _COST,
    "--compilation-config": _COST,
    "--cudagraph-capture-sizes": _COST,
    "--dtype": _COST,
    "--quantization": _COST,
    "--kv-cache-dtype": _COST,
    "--tensor-parallel-size": _COST,
    "--pipeline-parallel-size": _COST,
    "--speculative-config": _COST,
    "--logits-processors": _COST,
    "--enable-lora": _COST,
    "--gpu-memory-utilization": _MEMORY,
    "--kv-cache-memory-bytes": _MEMORY,
    "--max-model-len": _MEMORY,
    "--kv-offloading-size": _MEMORY,
    "--block-size": _MEMORY,
    "--async-scheduling": _RULE,
    "--scheduling-policy": _RULE,
    "--long-prefill-token-threshold": _RULE,
    "--watermark": _RULE,
    "--max-num-queued-reqs": _RULE,
    "--data-parallel-size": "the replay has one engine",
    "--api-server-count": _AROUND,
    "--stream-interval": _AROUND,
    "--tokenizer-mode": _AROUND,
    "--skip-tokenizer-init": _AROUND,
}
"""Other flags of `vllm serve` 0.32 that people try (`vllm/engine/arg_utils.py`), and why a replay cannot answer."""


def add_flags(parser: ArgumentParser) -> None:
    """Declares the server's flags."""
    from argparse import SUPPRESS, BooleanOptionalAction

    group = parser.add_argument_group("settings of the server, for what-if")
    for flag, meaning in REPLAYED.items():
        group.add_argument(flag, type=int, metavar="N", help=meaning)
    group.add_argument(CACHING, action=BooleanOptionalAction, help="keep computed prompts")
    for flag in NOT_REPLAYED:
        parser.add_argument(flag, nargs="?", const="", help=SUPPRESS)


def values(options: Namespace) -> dict[str, int | bool]:
    """The settings that were given, by flag."""
    found = {flag: _value(options, flag) for flag in (*REPLAYED, CACHING)}
    return {flag: value for flag, value in found.items() if value is not None}


def refused(options: Namespace) -> str | None:
    """The first flag that was given and for which a replay has no answer."""
    return next((flag for flag in NOT_REPLAYED if _value(options, flag) is not None), None)


def _value(options: Namespace, flag: str) -> int | bool | None:
    found: int | bool | None = getattr(options, flag.removeprefix("--").replace("-", "_"))
    return found
