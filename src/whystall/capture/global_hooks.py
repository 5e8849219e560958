"""Hooks in torch's own lists of global ones, under numbers that torch never uses.

Handles of hooks are numbered through a job, and a model's own hooks are saved under their numbers: one of ours would
shift all later ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, MutableMapping
from typing import Any, Final

_numbers: Final = itertools.count(-1, -1)
_living: Final[set[int]] = set()
"""The numbers of the hooks that were not removed."""


def put(
    hooks: MutableMapping[Any, Any], hook: Callable[..., object], *flags: MutableMapping[Any, Any]
) -> Callable[[], None]:
    """Adds a hook to a list, and returns a function that removes it; ``flags`` are lists that set how it is called."""
    key = next(_numbers)
    for flag in flags:
        flag[key] = True
    hooks[key] = hook
    _living.add(key)

    def take_out() -> None:
        _living.discard(key)
        for each in (hooks, *flags):
            each.pop(key, None)

    return take_out


def set_aside(*lists: MutableMapping[Any, Any]) -> Callable[[], None]:
    """Takes our hooks out of lists for a while, and returns a function that puts those back that are not removed."""
    kept = [(hooks, {key: hooks[key] for key in list(hooks) if key in _living}) for hooks in lists]
    for hooks, ours in kept:
        for key in ours:
            hooks.pop(key, None)

    def put_back() -> None:
        for hooks, ours in kept:
            hooks.update({key: hook for key, hook in ours.items() if key in _living})

    return put_back
