"""A progress bar on stderr for tasks longer than a second; nothing for shorter ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.progress import Progress, TaskID

    from whystall.cli.console import Console

DELAY_S = 0.5  # shorter work ends before a bar would help
INTERVAL_S = 0.1


class Bar(Protocol):
    """Something that shows how far the work is."""

    def show(self, done: int, total: int | None) -> None:
        """Shows ``done`` bytes of ``total``."""

    def close(self) -> None:
        """Removes the bar."""


class ReadingProgress:
    """Called with ``(bytes read, bytes in all)``; shows a bar once the work has taken ``DELAY_S``.

    Use as a context manager; rich is imported only when the bar is first drawn.
    """

    def __init__(
        self,
        console: Console,
        *,
        clock: Callable[[], float] = time.monotonic,
        make_bar: Callable[[], Bar] | None = None,
    ) -> None:
        self._enabled = console.shows_progress
        self._clock = clock
        self._make_bar = make_bar or _RichBar
        self._bar: Bar | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        self._due = self._clock() + DELAY_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int | None) -> None:
        """Shows that ``done`` bytes of ``total`` are read, a few times per second at most."""
        now = self._clock()
        ended = self._bar is not None and done == total
        if not self._enabled or (now < self._due and not ended):
            return
        if self._bar is None:
            self._bar = self._make_bar()
        self._bar.show(done, total)
        self._due = now + INTERVAL_S


class _RichBar:
    def __init__(self) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress: Progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            console=RichConsole(stderr=True),
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("reading", total=None)
        self._progress.start()

    def show(self, done: int, total: int | None) -> None:
        doing = "analysing" if done == total else "reading"
        self._progress.update(self._task, completed=done, total=total, description=doing)

    def close(self) -> None:
        self._progress.stop()
