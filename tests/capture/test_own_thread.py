"""Threads of ours beside a job that forks: none is there meanwhile, and they go on afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from whystall.capture.own_thread import OwnThread

LONG_S = 20.0
# Hooks before a fork are called in the reverse order: this program's come after ours.
COUNTS = """
import os, time
counted = []
os.register_at_fork(before=lambda: counted.append(len(os.listdir("/proc/self/task"))))
from whystall.capture.own_thread import OwnThread

turns = [0, 0]
def run(thread, place):
    while not threads[place].rests(0.001):
        turns[place] += 1
threads = [OwnThread(lambda: run(threads, 0)), OwnThread(lambda: run(threads, 1))]
for each in threads:
    each.start()
for _ in range(20):
    before = list(turns)
    while turns[0] == before[0] or turns[1] == before[1]:
        time.sleep(0.001)
    if not (child := os.fork()):
        os._exit(len(os.listdir("/proc/self/task")))
    counted.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(counted == [1] * 40, counted)
"""


class Counting:
    """A thread that counts its turns, each of which takes ``turn_s``."""

    def __init__(self, turn_s: float = 0.0) -> None:
        self.turned = threading.Event()
        self.thread = OwnThread(self._run)
        self._turn_s = turn_s

    def _run(self) -> None:
        while not self.thread.rests(0.001):
            self.turned.set()
            time.sleep(self._turn_s)

    def goes_on(self) -> bool:
        self.turned.clear()
        return self.turned.wait(LONG_S)


@pytest.fixture
def slow() -> Iterator[Counting]:
    """A thread that takes longer for a turn than a fork waits."""
    one = Counting(0.3)
    one.thread.start()
    assert one.goes_on()
    yield one
    one.thread.stop(LONG_S)


def fork() -> None:
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        os._exit(0)


def fork_and_wait() -> None:
    fork()
    threading.Event().wait(LONG_S)


def test_there_is_none_when_the_job_forks_and_in_its_child() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", COUNTS], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.startswith("True"), ran.stdout
    assert ran.stderr == ""


def test_one_that_is_busy_for_long_goes_on_after_the_fork(slow: Counting) -> None:
    began = time.monotonic()
    fork()
    assert time.monotonic() - began < LONG_S
    assert slow.goes_on()
    assert slow.goes_on()


def test_an_exception_of_a_handler_of_the_job_reaches_the_job_after_the_fork(slow: Counting) -> None:
    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("late")

    before = signal.signal(signal.SIGALRM, late)
    try:
        assert slow.goes_on()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(TimeoutError, match="late"):
            fork_and_wait()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_one_that_was_ended_is_not_begun_again(slow: Counting) -> None:
    slow.thread.stop(LONG_S)
    fork()
    slow.turned.clear()
    assert not slow.turned.wait(0.1)
