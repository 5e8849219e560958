"""Several threads profile their models at once: torch's profiler is one for all, and each gets its own numbers."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest
import torch
from torch import nn

import whystall
from whystall.model import stopwatch

PROGRAM: Final = """
import threading, torch, whystall
from torch import nn

told = {}

def work(width):
    model = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))
    for _ in range(3):
        told[width] = whystall.model_profile(model, torch.randn(8, width))

threads = [threading.Thread(target=work, args=(width,)) for width in (16, 32, 64)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
for width, profile in sorted(told.items()):
    print(width, profile.forward.model_flops, profile.untimed_because)
"""


def test_three_threads_at_once_end_with_their_numbers() -> None:
    """In an interpreter of its own, which this used to end with signal 11."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = [f"{width} {2 * 8 * (width * 64 + 64 * 10)} None" for width in (16, 32, 64)]
    assert done.stdout.splitlines() == wanted


def test_a_thread_that_is_timed_forever_costs_the_times_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "_LONGEST_WAIT_S", 0.05)
    with stopwatch._ONE_AT_A_TIME:
        profile = whystall.model_profile(nn.Linear(4, 4), torch.zeros(2, 4))
    assert profile.untimed_because == "another thread is being timed"
    assert profile.forward.model_flops == 64
    assert whystall.model_profile(nn.Linear(4, 4), torch.zeros(2, 4)).untimed_because is None
