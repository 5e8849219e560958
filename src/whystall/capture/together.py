"""Ranks of a job record the same steps: the first that is steady says in the run's folder which.

While a rank writes its trace its job stands still, so that steps in which another rank still records are spent waiting
for it; and what each rank did in the same step is what is compared.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from whystall.run_folder.layout import window_name

_AHEAD: Final = 2
"""So many steps on all ranks have looked."""
_FARTHEST: Final = 16
"""What says that it begins later than this is left from another attempt, or from ranks that step otherwise."""


class Together:
    """Where the ranks of a job see no folder of each other's, each begins when it is ready.

    What was said stays: ranks need not step together, and nobody knows when all have heard it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begins(self, window: int, step: int, *, ready: bool) -> bool:
        """Whether a window, counted from 0, begins after this step; ``ready`` says whether this rank would have it so.

        Microseconds in each of the few steps before the window.
        """
        at = self._said(window)
        if at is None and ready:
            self._say(window, step + _AHEAD)
            at = self._said(window)
        return step >= at if at is not None and at <= step + _FARTHEST else ready

    def _said(self, window: int) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._folder / window_name(window)).read_bytes())
        return None  # nobody has, or is just about to

    def _say(self, window: int, step: int) -> None:
        with suppress(OSError):  # another rank was first; or the folder cannot be written to
            file = os.open(self._folder / window_name(window), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            try:
                os.write(file, str(step).encode())
            finally:
                os.close(file)
