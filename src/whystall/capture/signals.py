"""The signals of a watched process that nobody else has taken, and calls on its main thread."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from whystall._native import call_on_main_thread

_REQUEST: Final = signal.SIGUSR2
# The standard library's own files in which a thread waits for a lock or for I/O, and takes the wait up again after a
# signal. A wait of somebody's native code may end with an error instead.
_WAITING: Final = frozenset({threading.__file__, selectors.__file__})


class Signals:
    """Hears what asks the process to end (``terminate``) and what asks for a window (``request``)."""

    def __init__(self, terminate: Callable[[], None], request: Callable[[], None]) -> None:
        self.terminated = False
        self._terminate = terminate
        self._request = request
        self._nudged = False
        self._handlers: dict[int, Callable[[int, FrameType | None], None]] = {}

    def listen(self) -> None:
        """Takes the signals that would end the process unheard; on the main thread alone it does something."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in ((signal.SIGTERM, self._on_termination), (_REQUEST, self._on_request)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)
                self._handlers[number] = handler

    def leave(self) -> None:
        """Gives them back, in a child that was forked; only a main thread may: where it is none, they stay."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is handler:
                with contextlib.suppress(ValueError):
                    signal.signal(number, signal.SIG_DFL)

    def call_on_main_thread(self, call: Callable[[], None]) -> None:
        """Has the main thread do something soon, also where it waits in Python's own ``join``, ``get`` or ``select``.

        CPython does not run what is pending before such a wait is over, which may be when the job is; a signal that has
        a handler makes it look.
        """
        main = threading.main_thread().ident
        if not call_on_main_thread(call) or main is None or main == threading.get_ident():
            return
        frame = sys._current_frames().get(main)  # noqa: SLF001 - the only way to see where another thread is
        ours = self._handlers.get(_REQUEST)
        if frame is None or frame.f_code.co_filename not in _WAITING or ours is None:
            return
        if signal.getsignal(_REQUEST) is ours:
            self._nudged = True
            signal.pthread_kill(main, _REQUEST)

    def _on_termination(self, number: int, _frame: FrameType | None) -> None:
        self.terminated = True
        self._terminate()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _on_request(self, _number: int, _frame: FrameType | None) -> None:
        nudged, self._nudged = self._nudged, False
        if not nudged:
            self._request()
