"""Hooks in torch's own lists of global ones, under numbers that torch never uses.

Handles of hooks are numbered through a job, and a model's own hooks are saved under their numbers: one of ours would
shift all later ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, MutableMapping
from typing import Any, Final

_numbers: Final = itertools.count(-1, -1)


def put(
    hooks: MutableMapping[Any, Any], hook: Callable[..., object], *flags: MutableMapping[Any, Any]
) -> Callable[[], None]:
    """Adds a hook to a list, and returns a function that removes it; ``flags`` are lists that set how it is called."""
    key = next(_numbers)
    for flag in flags:
        flag[key] = True
    hooks[key] = hook

    def take_out() -> None:
        for each in (hooks, *flags):
            each.pop(key, None)

    return take_out
