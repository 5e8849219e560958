"""Imports packages that take long before and after torch, as on a cold disk, and then trains a little.

It runs with Pythons that whystall does not support, and without torch. What is imported builds tuples all the while, as
regular expressions, enumerations and data classes do when a module is run.
"""

from __future__ import annotations

import importlib
import sys
import time
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any


class Slow(MetaPathFinder, Loader):
    """Finds packages by these names and takes so many seconds to import each."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self.seconds else None

    def create_module(self, spec: ModuleSpec) -> None:
        """As Python makes it."""

    def exec_module(self, module: Any) -> None:
        until = time.monotonic() + self.seconds[module.__name__]
        module.TABLES = []
        while time.monotonic() < until:
            # A tuple of unknown length grows as it is filled: nobody else may hold it meanwhile.
            module.TABLES.append(tuple(waited(number) for number in range(24)))


def waited(number: int) -> int:
    """The number, after a pause in which other threads run."""
    time.sleep(0.0005)
    return number


def train(torch: Any) -> None:
    """A few steps."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(6):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    sys.meta_path.insert(0, Slow(slow_before=float(sys.argv[1]), slow_after=float(sys.argv[2])))
    before, torch, after = map(importlib.import_module, ("slow_before", "torch", "slow_after"))
    print("tables", all(len(table) == 24 for table in before.TABLES + after.TABLES))
    if hasattr(torch, "nn"):
        train(torch)
        print("trained")
