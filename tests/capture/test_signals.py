"""A signal reaches the job once: handed on where only the launcher got it, and not where the whole group did."""

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
