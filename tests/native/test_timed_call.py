"""Calls that tell of their beginning and end: whose they are and what they returned; listeners may raise."""

from __future__ import annotations

import pytest

from whystall._native import TimedCall


def test_the_end_is_told_what_was_returned() -> None:
    told: list[object] = []
    call = TimedCall(divmod, lambda: None, told.append, tells_result=True)
    assert call(7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        call(7, 0)
    assert told == [(3, 1), None]


def test_without_being_asked_for_nothing_is_told() -> None:
    told: list[tuple[object, ...]] = []
    call = TimedCall(divmod, lambda *given: told.append(given), lambda *given: told.append(given))
    assert call(7, 2) == (3, 1)
    assert told == [(), ()]


def test_what_listeners_raise_is_dropped() -> None:
    call = TimedCall(divmod, lambda: 1 / 0, lambda _: 1 / 0, tells_result=True)
    assert call(7, 2) == (3, 1)
