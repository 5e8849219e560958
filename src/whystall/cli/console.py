"""Where the command line writes: the result to stdout, all else to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

PIPED_WIDTH = 100  # columns without a terminal


class Console:
    """The two streams of the command line.

    The streams are looked up at each use, so that tests and callers can replace them.
    """

    def __init__(self) -> None:
        self.quiet = False
        self.verbose = False

    def configure(self, *, quiet: bool, verbose: bool) -> None:
        """Takes over ``-q`` and ``-v``."""
        self.quiet = quiet
        self.verbose = verbose

    def result(self, text: str) -> None:
        """Prints a result to stdout, ended by exactly one newline."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Says something beside the result."""
        if not self.quiet:
            _say(text)

    def detail(self, text: str) -> None:
        """Prints a text only with ``-v``."""
        if self.verbose:
            self.note(text)

    def next(self, command: str) -> None:
        """Names the next command, as the last line."""
        self.note(f"next: {command}")

    def error(self, text: str) -> None:
        """Prints an error; not even ``-q`` silences it."""
        _say(f"whystall: {text}")

    @property
    def colour(self) -> bool:
        """Whether stdout wants colour: a terminal, without ``NO_COLOR`` (no-color.org)."""
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        """The columns of stdout."""
        import shutil

        return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if sys.stdout.isatty() else PIPED_WIDTH

    @property
    def shows_progress(self) -> bool:
        """Whether a progress bar would be visible."""
        return not self.quiet and is_terminal(sys.stderr)


def _say(text: str) -> None:
    """Prints to stderr; does nothing if stderr is closed."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr)  # noqa: T201 - this is the one place that prints


def is_terminal(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
