"""The line in which Python ran that gave the lock up only behind it: told where it is certain."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from whystall.capture.line_before import line_before

Call = Callable[[], Any]


def straight(work: Call, look: Call) -> None:
    work()
    look()  # 1


def through_values(work: Call, look: Call) -> None:
    values = [work()]
    other = values
    look()  # 2
    del other


def in_a_branch(work: Call, look: Call) -> None:
    if work():
        look()  # 1


def in_its_own_line(work: Call, look: Call) -> None:
    work()
    sys.audit("both", work(), look())  # None


def first_in_a_loop(work: Call, look: Call) -> None:
    for _ in range(2):
        look()  # None: perhaps the end of the turn before
        work()


def later_in_a_loop(work: Call, look: Call) -> None:
    for _ in range(2):
        work()
        look()  # 1


def behind_a_branch(work: Call, look: Call) -> None:
    if len(sys.argv) > 10**6:
        work()
    look()  # None


def behind_an_index(work: Call, look: Call) -> None:
    rows = {0: work}
    work()
    _ = rows[0]
    look()  # None: an object's own __getitem__ may be it


def first_of_all(work: Call, look: Call) -> None:
    look()  # None
    work()


def behind_a_yield(work: Call, look: Call) -> Iterator[None]:
    work()
    yield
    look()  # None: whoever takes the values was at work


@pytest.mark.parametrize(
    ("function", "above"),
    [
        (straight, 1),
        (through_values, 2),
        (in_a_branch, 1),
        (in_its_own_line, None),
        (first_in_a_loop, None),
        (later_in_a_loop, 1),
        (behind_a_branch, None),
        (behind_an_index, None),
        (first_of_all, None),
        (behind_a_yield, None),
    ],
)
def test_the_line_before_a_call(function: Callable[[Call, Call], Any], above: int | None) -> None:
    found: list[int | None] = []

    def look() -> None:
        frame = sys._getframe(1)
        line = line_before(frame.f_code, frame.f_lasti)
        found.append(line if line is None else frame.f_lineno - line)

    list(function(lambda: True, look) or ())
    assert set(found) == {above}
