"""Ranks of a job record the same steps: the first that is steady writes the step to the run's folder.

While a rank writes its trace its job is paused, so that other ranks' recorded steps would be spent waiting for it; and
ranks are compared by the same step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from whystall.capture.faults import suppress
from whystall.run_folder.layout import staged_window, window_name

_AHEAD: Final = 2
"""This many steps later the other ranks are steady, too, or go by themselves."""
_FARTHEST: Final = 16
"""A begin further ahead than this is left from another attempt, or from ranks that step otherwise."""


class Together:
    """Agrees on the begin of windows; where ranks see no common folder, each begins when it is ready.

    Messages stay: ranks need not step together, and it is unknown when all have read them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begins(self, window: int, step: int, *, ready: bool) -> bool:
        """Whether a window, counted from 0, begins after this step; ``ready``: whether this rank is ready.

        A rank whose first steps still differ records alone once it is ready.
        """
        if not ready:
            return False
        at = self._said(window)
        if at is None:
            self._say(window, step + _AHEAD)
            at = self._said(window)
        return at is None or step >= at or at > step + _FARTHEST

    def _said(self, window: int) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._folder / window_name(window)).read_bytes())
        return None

    def _say(self, window: int, step: int) -> None:
        name = window_name(window)
        own = self._folder / staged_window(name, os.getpid())
        with suppress(OSError):  # another rank was first; or the folder cannot be written to
            own.write_bytes(str(step).encode())
            os.link(own, self._folder / name)  # whole, and the first alone
        with suppress(OSError):
            own.unlink()
