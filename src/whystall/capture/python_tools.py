"""Which of Python's own tools follow the job while it runs: they make Python many times as slow."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Final

from whystall.run_folder.description import PythonTool

_PROFILER_OF_MONITORING: Final = 2  # sys.monitoring.PROFILER_ID, which cProfile takes from Python 3.12 on


def is_profiled() -> bool:
    """Whether a profiler of Python's sees the calling thread (``sys.setprofile``, cProfile)."""
    monitoring = getattr(sys, "monitoring", None)
    return sys.getprofile() is not None or bool(monitoring and monitoring.get_tool(_PROFILER_OF_MONITORING))


class PythonTools:
    """The tools seen so far."""

    def __init__(self) -> None:
        self._seen: set[PythonTool] = set()

    def told(self) -> list[PythonTool]:
        """Those that were on at some time when this was called, on the thread that calls."""
        if tracemalloc.is_tracing():
            self._seen.add("tracemalloc")
        if is_profiled():
            self._seen.add("profiler")
        if sys.gettrace() is not None:
            self._seen.add("tracer")
        return sorted(self._seen)
