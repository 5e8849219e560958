"""The options of ``whystall serve``: the actions that each belongs to, and the server's flags that what-if knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from whystall.errors import UsageError
from whystall.serving.server import REPLAYED

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

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
SWITCHES: Final = frozenset({"--enforce-eager", "--enable-lora", "--async-scheduling", "--skip-tokenizer-init"})
"""Those that take no value; each has a negation (``--no-enforce-eager``)."""

_ALONE: Final = ("what-if",)
_ACTIONS: Final[dict[str, tuple[str, ...]]] = {
    "--every": ("watch", "run"),
    "--report-every": ("watch",),
    "--for": ("watch",),
    "--no-flags": ("run",),
    "--json": ("report", "what-if", "watch"),
    "--no-limits": ("report", "what-if"),
    **dict.fromkeys((*REPLAYED, *NOT_REPLAYED), _ALONE),
}
"""The actions that each option belongs to; others belong to all. None of these has a default of its own."""


def add_flags(parser: ArgumentParser) -> None:
    """Declares the server's flags."""
    from argparse import SUPPRESS, BooleanOptionalAction

    group = parser.add_argument_group("settings of the server, for what-if")
    for flag, setting in REPLAYED.items():
        if setting.is_switch:
            group.add_argument(flag, action=BooleanOptionalAction, help=setting.meaning)
        else:
            group.add_argument(flag, type=int, metavar="N", help=setting.meaning)
    for flag in NOT_REPLAYED:
        if flag in SWITCHES:
            parser.add_argument(flag, _negated(flag), action="store_const", const=True, help=SUPPRESS)
        else:
            parser.add_argument(flag, nargs="?", const="", help=SUPPRESS)


def check(options: Namespace, configured: Callable[[str], object]) -> None:
    """Raises ``UsageError`` for an option that the action ignores, or that a replay cannot answer.

    Defaults of a configuration are for all actions and verbs, so that they are no reason: ``configured`` has them.
    """
    for flag, actions in _ACTIONS.items():
        value = value_of(options, flag)
        if value is None or value == configured(_destination(flag)):
            continue
        if options.action not in actions:
            raise UsageError(_ignored(flag, options.action, actions))
        if flag in NOT_REPLAYED:
            known = ", ".join(REPLAYED)
            raise UsageError(f"a replay does not answer {flag}: {NOT_REPLAYED[flag]}. It knows {known}")


def _ignored(flag: str, action: str, actions: tuple[str, ...]) -> str:
    *others, last = (f"`serve {one}`" for one in actions)
    belongs = f"{', '.join(others)} and {last}" if others else last
    hint = "; put the flags of the server behind --" if action == "run" and actions == _ALONE else ""
    return f"`serve {action}` takes no {flag}, which belongs to {belongs}{hint}"


def changes(options: Namespace) -> dict[str, int | bool]:
    """The settings that a replay plays, by flag."""
    found = {flag: value_of(options, flag) for flag in REPLAYED}
    return {flag: value for flag, value in found.items() if value is not None}


def value_of(options: Namespace, flag: str) -> Any:
    """The value of an option; ``None`` where neither the command line nor a configuration has one."""
    return getattr(options, _destination(flag))


def _destination(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _negated(flag: str) -> str:
    return flag.replace("--", "--no-", 1)
