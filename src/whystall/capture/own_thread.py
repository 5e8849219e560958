"""A thread of ours that a job does not meet.

``threading`` does not list it: a job may wait for the end of every thread that ``threading.enumerate()`` gives, and
for a time at which there is only one. Neither does it get the functions of ``threading.setprofile`` and ``settrace``.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable


class OwnThread:
    """Runs ``run`` beside the job. It does not keep the process from ending."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._ident: int | None = None
        self._running = _thread.allocate_lock()

    def start(self) -> None:
        """Begins."""
        self._running.acquire()
        try:
            _thread.start_new_thread(self._whole, ())
        except BaseException:
            self._running.release()
            raise

    def _whole(self) -> None:
        self._ident = _thread.get_ident()
        try:
            self._run()
        finally:
            self._running.release()

    def wait(self, longest_s: float) -> None:
        """Waits until it has ended, at most ``longest_s``; not for itself."""
        if self._ident != _thread.get_ident() and self._running.acquire(timeout=longest_s):
            self._running.release()
