"""Savings in the time of Python without a tool that traces it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whystall.run_folder.description import PythonTool

Saved = tuple[float, float, float]
"""A share: at least, as expected, at most."""
# Five pieces of Python (strings and dicts, numbers, calls, objects, regular expressions) on Python 3.11 took 2.4 to 7
# times as long under tracemalloc (2.4 to 35 with 25 frames each), 0.8 to 2.7 times under cProfile, and 1.0 to 5 times
# under a tracer that does nothing.
_OF_PYTHON: Final[dict[PythonTool, Saved]] = {
    "tracemalloc": (0.4, 0.7, 0.9),
    "profiler": (0.05, 0.3, 0.65),
    "tracer": (0.1, 0.55, 0.85),
}


def saved_of_python(tools: Sequence[PythonTool]) -> Saved:
    """The share of Python's time that such tools cost: that of the most expensive one."""
    return max((_OF_PYTHON[tool] for tool in tools), default=(0.0, 0.0, 0.0))
