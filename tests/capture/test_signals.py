"""No signal is taken from a job, and one reaches it once.

It is handed on where only the launcher got it, and not where the whole group did.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.capture.conftest import TIMEOUT_S, Jobs

from whystall.capture.config import CaptureConfig
from whystall.capture.launch import watched_environment

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


IDENTIFIES = """
import signal, sys
import torch
def seen():
    lines = open("/proc/self/status").read().splitlines()
    masks = [line.split() for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    # 32 and 33 are glibc's own: taken when a first thread starts, and there for no program
    masks = [(name, int(mask, 16) & ~(0b11 << 31)) for name, mask in masks]
    return [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())], masks, signal.set_wakeup_fd(-1)
before = seen()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
print(before, seen())
"""

WAITS = """
import ctypes, sys, threading, time, _thread
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
print("waits", flush=True)
libc = ctypes.PyDLL(None) if sys.argv[1] == "lock" else ctypes.CDLL(None)
if sys.argv[1] == "native":
    while True:
        libc.poll(None, 0, 100)  # as a collective: it looks for no signal of Python's
libc.pause()  # holds the interpreter's lock
"""

THREADED = """
import sys, threading, time
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64))
def serves():
    until = time.monotonic() + 12.0
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.ones(8, 64))
            time.sleep(0.01)
serving = threading.Thread(target=serves)
serving.start()
serving.join()
"""


def test_dispositions_and_masks_are_the_same(jobs: Jobs) -> None:
    (jobs.home / "identifies.py").write_text(IDENTIFIES)
    plain = jobs.command(sys.executable, "identifies.py")
    watched = jobs.watched("identifies.py")
    assert plain.code == watched.code == 0, watched.stderr
    assert watched.stdout == plain.stdout
    assert (watched.folder / "rank0.samples.jsonl").exists()


@pytest.mark.parametrize("how", ["native", "lock"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM])
def test_a_job_that_waits_in_native_code_dies_of_what_it_would_die_of(
    jobs: Jobs, number: signal.Signals, how: str
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as under nohup: a plain job does not die of it")
    (jobs.home / "waits.py").write_text(WAITS)
    config = CaptureConfig(folder=str(jobs.folder))
    environment = jobs.environment(**watched_environment(config, jobs.environment()))
    with subprocess.Popen(
        [sys.executable, "waits.py", how], cwd=jobs.home, env=environment, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "waits\n"
        job.send_signal(number)
        assert job.wait(TIMEOUT_S) == -number
    steps = (jobs.folder / "rank0.samples.jsonl").read_text().splitlines()
    assert steps  # what there was is there


def test_a_model_that_serves_on_another_thread_is_found_while_the_main_one_waits(jobs: Jobs) -> None:
    (jobs.home / "threaded.py").write_text(THREADED)
    ran = jobs.watched("threaded.py", optimizer_within_s=0.5)
    assert ran.code == 0, ran.stderr
    (rank,) = (json.loads(path.read_text()) for path in ran.folder.glob("rank*.run.json"))
    assert rank["steps_from"] == "forward passes"
