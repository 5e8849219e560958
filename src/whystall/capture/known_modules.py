"""The modules of a job that are alive, and which of them is the model."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from whystall.capture.the_jobs import parameters_of

if TYPE_CHECKING:
    import torch


class Known:
    """Objects of the user's that were seen on the user's threads; each lives as long as the user keeps it."""

    def __init__(self) -> None:
        self._living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.ever = 0
        """How many were seen in all."""
        self.packages: set[str] = set()
        """Where their classes come from."""

    def add(self, thing: object) -> None:
        """Remembers one by identity, not by equality; only once."""
        if self._living.get(id(thing)) is thing:
            return
        self._living[id(thing)] = thing
        self.ever += 1
        self.packages.add(type(thing).__module__.partition(".")[0])

    def count(self) -> int:
        """How many are alive."""
        return len(self._living)

    def living(self) -> list[Any]:
        """Those that are alive."""
        return [thing for reference in self._living.valuerefs() if (thing := reference()) is not None]


def outermost_module(modules: Sequence[torch.nn.Module], parameters: set[int] | None) -> torch.nn.Module | None:
    """The module in ``modules`` that is no other's child and holds the most of ``parameters`` (``None``: of any)."""
    children = {id(child) for module in modules for child in module._modules.values()}  # noqa: SLF001
    best, most = None, 0
    for module in modules:
        if id(module) in children:
            continue
        held = sum(1 for parameter in parameters_of(module) if parameters is None or id(parameter) in parameters)
        if held > most:
            best, most = module, held
    return best
