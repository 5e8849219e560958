"""A signal reaches the job once: handed on where only the launcher got it, and not where the whole group did.

And a call on the main thread comes to it where it waits in Python's own code, and breaks no wait of anybody else's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests.capture.conftest import TIMEOUT_S, Jobs

COUNTS = """
import signal, time
heard = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(number))
print("ready", flush=True)
while not heard:
    time.sleep(0.01)
until = time.monotonic() + 1.5  # a second one would come within the launcher's patience
while time.monotonic() < until:
    time.sleep(0.01)
print(len(heard), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whole_group", [True, False])
def test_a_signal_reaches_the_job_once(jobs: Jobs, number: signal.Signals, whole_group: bool) -> None:
    (jobs.home / "counts.py").write_text(COUNTS)
    with subprocess.Popen(
        [sys.executable, "-m", "whystall", "run", "-o", "run", "counts.py"],
        cwd=jobs.home,
        env=jobs.environment(),
        stdin=subprocess.DEVNULL,  # no terminal
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        (os.killpg if whole_group else os.kill)(launcher.pid, number)
        assert launcher.stdout.readline() == "1\n"
        assert launcher.wait(TIMEOUT_S) == 0


CALLED = """
import ctypes, sys, threading, time
from whystall.capture.signals import Signals
asked, called = [], []
signals = Signals(lambda: None, lambda: asked.append(True))
signals.listen()
began = time.monotonic()
over = threading.Event()
def beside():
    time.sleep(0.3)
    signals.call_on_main_thread(lambda: called.append(time.monotonic() - began))
    if sys.argv[1] == "asked":
        time.sleep(0.3)
        import os, signal
        os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(1.5)
    over.set()
threading.Thread(target=beside).start()
if sys.argv[1] == "native":
    waited = ctypes.CDLL(None).poll(None, 0, 1000)  # -1 where a signal ended it
else:
    waited = int(not over.wait())
print(waited, len(asked), len(called), called[0] < 1.0)
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [("python", "0 0 1 True"), ("asked", "0 1 1 True"), ("native", "0 0 1 False")],
)
def test_a_call_comes_to_a_main_thread_that_waits_and_breaks_no_wait(how: str, told: str) -> None:
    """A signal of the user's still asks for a window; a wait in native code ends by its own time."""
    done = subprocess.run(
        [sys.executable, "-c", CALLED, how], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.strip() == told
