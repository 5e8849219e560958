"""Tools that follow Python are seen while they are on, and remembered."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

import pytest

from whystall.capture.python_tools import PythonTools


def follows(_frame: FrameType, _event: str, _arg: object) -> None:
    """A tool that does nothing."""


@pytest.mark.parametrize(
    ("tool", "starts", "stops"),
    [
        ("tracemalloc", tracemalloc.start, tracemalloc.stop),
        ("profiler", lambda: sys.setprofile(follows), lambda: sys.setprofile(None)),
        ("tracer", lambda: sys.settrace(follows), lambda: sys.settrace(None)),
    ],
)
def test_what_was_on_at_a_look_is_told(tool: str, starts: Callable[[], None], stops: Callable[[], None]) -> None:
    if sys.gettrace() is not None or sys.getprofile() is not None or tracemalloc.is_tracing():
        pytest.skip("the tests themselves are followed")
    tools = PythonTools()
    assert tools.told() == []
    starts()
    try:
        told = tools.told()
    finally:
        stops()
    assert told == [tool]
    assert tools.told() == [tool]  # it was on when steps were recorded
    assert PythonTools().told() == []
