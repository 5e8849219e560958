"""A thread of ours that a job does not meet.

``threading`` does not list it: a job may wait for the end of every thread that ``threading.enumerate()`` gives, and
for a time at which there is only one. Neither does it get the functions of ``threading.setprofile`` and ``settrace``.
While the job forks there is none: Python 3.12 and later warn of a fork with several threads, and a child would keep
the locks that a thread held.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

from whystall.capture.faults import signal_that_raised

_LONGEST_S: Final = 0.1
"""How long a fork waits for one of our threads: it may be writing to a slow disk."""
_ENDING_S: Final = 0.001
"""How long a thread may take from its last look at ``_ends`` to its end."""
_GLANCES: Final = 200

_started: Final[list[OwnThread]] = []
_interrupted_by: Final[list[signal.Signals]] = []
"""The job's signals whose handlers raised while our threads were halted: Python drops what a fork's hooks raise."""


class OwnThread:
    """Runs ``run`` beside the job, again after each fork. It does not keep the process from ending."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._ends = threading.Event()
        self._ident: int | None = None
        self._native_id = 0
        self._running = _thread.allocate_lock()

    def start(self) -> None:
        """Begins."""
        _started.append(self)
        self.begin()

    def rests(self, seconds: float) -> bool:
        """Waits on this thread; whether ``run`` is to return."""
        ends = self._ends.wait(seconds)
        if not ends:
            _raise_late()
        return ends

    def stop(self, longest_s: float) -> None:
        """Ends it for good; waits at most ``longest_s``."""
        if self in _started:
            _started.remove(self)
        self.halt(longest_s)

    def begin(self) -> None:
        """Runs it, or lets it go on where it wrote for too long to be halted."""
        self._ends.clear()
        if not self._running.acquire(timeout=_ENDING_S):
            return
        try:
            _thread.start_new_thread(self._whole, ())
        except BaseException:
            self._running.release()
            raise

    def _whole(self) -> None:
        self._ident, self._native_id = _thread.get_ident(), _thread.get_native_id()
        try:
            _raise_late()
            while not self._ends.is_set():
                self._run()
        finally:
            self._running.release()

    def halt(self, longest_s: float) -> None:
        """Ends it for a while, and waits for that; not for itself."""
        self._ends.set()
        if self._ident != _thread.get_ident() and self._running.acquire(timeout=longest_s):
            self._running.release()

    def is_listed(self) -> bool:
        """Whether the system still counts it among the process's threads."""
        return os.access(f"/proc/self/task/{self._native_id}", os.F_OK)


def _raise_late() -> None:
    """Has the job's handlers called again where a fork's hook dropped what they raised."""
    while _interrupted_by:
        number = _interrupted_by.pop()
        if callable(signal.getsignal(number)):
            signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextlib.contextmanager
def _in_a_hook() -> Iterator[None]:
    """Python prints what a fork's hooks raise, and goes on: failures of ours end here, the job's are raised later."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - see above
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal_that_raised(error)
        if number is not None:
            _interrupted_by.append(signal.Signals(number))


def _before_fork() -> None:
    with _in_a_hook():
        for each in _started:
            each.halt(_LONGEST_S)
        for _ in range(_GLANCES):  # the system lists a thread for a moment longer
            if not any(each.is_listed() for each in _started):
                break
            os.sched_yield()


def _after_fork() -> None:
    with _in_a_hook():
        for each in _started:
            each.begin()


def _in_child() -> None:
    _started.clear()
    _interrupted_by.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
