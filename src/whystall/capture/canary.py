"""Distinguishes a signal to the whole process group from one to the launcher alone.

Only the second kind has to be passed on to the job: the first has reached it already, and a job that gets two requests
to end ends harder than requested. The kernel does not report the kind of a signal. So an idle process stays in the
group, and ends by any signal that the whole group got.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import Final

# All processes of a group get its signal at once; on a busy machine their end takes a moment to show.
_PATIENCE_S: Final = 0.3


class Canary:
    """A process of the launcher's group. It waits for input that never comes, so that it ends with the launcher."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._hatch()

    def _hatch(self) -> None:
        nowhere = subprocess.DEVNULL
        self._process = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(("cat",), stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)  # noqa: S607 - found on the PATH

    @property
    def is_alive(self) -> bool:
        """Whether it works; not on a machine without ``cat``."""
        return self._process is not None

    def has_heard(self, number: int) -> bool:
        """Whether a signal that has just come here was sent to the group."""
        if self._process is None:
            return False
        try:
            code = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return False
        self.close()
        self._hatch()  # for the next signal
        return code == -number

    def close(self) -> None:
        """Ends it."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.kill()  # one that was stopped from the keyboard reads no end of its input
            process.wait()
