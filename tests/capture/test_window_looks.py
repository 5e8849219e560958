"""Looks in recorded windows: by place, with their times, and no more than there is room for."""

from __future__ import annotations

from itertools import pairwise

from whystall.capture.window_looks import WindowLooks
from whystall.run_folder.observations import MOST_WINDOW_PLACES


def looks() -> WindowLooks:
    return WindowLooks(lambda file: file.upper(), lambda _file, line: f"line {line}")


def test_looks_are_told_by_place_the_most_frequent_first() -> None:
    found = looks()
    for at in range(10):
        found.add(at, ("", "a.py", 1 + (at >= 3), "main", "torch:mm"))
    first, second = found.told()
    assert (first.file, first.line, first.text, first.at_unix_ns) == ("A.PY", 2, "line 2", list(range(3, 10)))
    assert (second.line, second.at_unix_ns) == (1, [0, 1, 2])


def test_a_long_window_is_thinned_evenly() -> None:
    found = looks()
    for at in range(100_000):
        found.add(at, ("", "a.py", 1 if at % 1000 < 750 else 2, "main", "torch:mm"))
    often, seldom = found.told()
    times = sorted(often.at_unix_ns + seldom.at_unix_ns)
    assert 400 <= len(times) <= 1_000
    assert 0.7 <= len(often.at_unix_ns) / len(times) <= 0.8
    assert times[-1] >= 95_000
    assert max(later - earlier for earlier, later in pairwise(times)) <= 800


def test_many_places_are_cut_at_the_least_frequent() -> None:
    found = looks()
    for line in range(300):
        for at in range(1 + (line < 50)):
            found.add(at, ("", "a.py", line, "main", "torch:mm"))
    told = found.told()
    assert len(told) == MOST_WINDOW_PLACES
    assert {one.line for one in told} >= set(range(50))
