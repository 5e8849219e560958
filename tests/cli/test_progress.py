from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from whystall.cli.console import Console
from whystall.cli.progress import ReadingProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from .conftest import Cli, FakeApi


class FakeBar:
    def __init__(self) -> None:
        self.shown: list[tuple[int, int | None]] = []
        self.closed = False

    def show(self, done: int, total: int | None) -> None:
        self.shown.append((done, total))

    def close(self) -> None:
        self.closed = True


class Watched(Console):
    @property
    def shows_progress(self) -> bool:
        return True


def clock(*instants: float) -> Iterator[float]:
    return iter(instants)


def test_quick_work_shows_no_bar() -> None:
    bar = FakeBar()
    instants = clock(0.0, 0.1, 0.2)

    with ReadingProgress(Watched(), clock=lambda: next(instants), make_bar=lambda: bar) as progress:
        progress(10, 100)
        progress(100, 100)

    assert bar.shown == []


def test_slow_work_shows_a_bar_a_few_times_per_second_and_removes_it() -> None:
    bar = FakeBar()
    instants = clock(0.0, 0.6, 0.61, 0.8)

    with ReadingProgress(Watched(), clock=lambda: next(instants), make_bar=lambda: bar) as progress:
        progress(10, 100)
        progress(11, 100)
        progress(30, 100)

    assert bar.shown == [(10, 100), (30, 100)]
    assert bar.closed


def test_the_end_of_the_file_is_always_shown() -> None:
    bar = FakeBar()
    instants = clock(0.0, 0.6, 0.61)

    with ReadingProgress(Watched(), clock=lambda: next(instants), make_bar=lambda: bar) as progress:
        progress(10, 100)
        progress(100, 100)

    assert bar.shown == [(10, 100), (100, 100)]


def test_nobody_watches_a_pipe() -> None:
    assert not Console().shows_progress


def test_quiet_shows_no_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    console = Console()
    assert console.shows_progress

    console.configure(quiet=True, verbose=False)
    assert not console.shows_progress


def test_the_analysis_is_given_the_progress(cli: Cli, api: FakeApi) -> None:
    cli("analyze", "x.json")

    api.analyzed[0][1]["progress"](5, None)
