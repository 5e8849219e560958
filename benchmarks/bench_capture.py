"""What watching a job costs between windows, and inside one: on and off in turn, within one process.

    python benchmarks/bench_capture.py

The cost of watching is so much time per step, whatever the step does. It is measured on a step that does next
to nothing, where it stands out of the noise of a shared machine, in blocks that are watched and blocks that
are not, alternately; from it follows how long a step must be for the cost to stay within one per cent. On steps of ten
milliseconds, in which other numbers fill the core's cache, a difference of CPU times is lost in its noise: there
the clock is read around each call of ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from whystall.capture import session as capture
from whystall.capture.config import ALWAYS, MOST_SAMPLE_BYTES, CaptureConfig, Schedule
from whystall.capture.listener import guarded

STEPS = 300
WARM_UP = 40  # the capture judges by then whether steps are too short to time modules
ALLOWED = 0.01
IN_PRODUCTION = 0.003
LONG_S = 0.009
LONG_STEPS = 600
JOB = """
import resource, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20_000):
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


class Loop:
    """A training loop around a model of the wanted width, which does something else for a while in each step."""

    def __init__(self, width: int, beside_s: float = 0.0) -> None:
        torch.manual_seed(0)
        self.beside_s = beside_s
        self.numbers = torch.randn(256, 256)
        self.model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(TensorDataset(torch.randn(4_000, width)), batch_size=8)
        self.batches = iter(self.loader)

    def run(self, steps: int) -> float:
        """CPU microseconds of a step on the training thread."""
        started = time.thread_time()
        for _ in range(steps):
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(self.loader)
                batch = next(self.batches)
            self.model(batch[0]).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            until = time.perf_counter() + self.beside_s
            while time.perf_counter() < until:
                self.numbers @ self.numbers
        return (time.thread_time() - started) / steps * 1e6


def watched(loop: Loop, steps: int, folder: str, schedule: Schedule) -> float:
    """The same in a block that is watched."""
    kept = MOST_SAMPLE_BYTES if schedule is ALWAYS else None
    session = capture.Session(torch, CaptureConfig(folder=folder, schedule=schedule, most_sample_bytes=kept))
    session.open(whole_process=False)
    loop.run(WARM_UP)
    try:
        return loop.run(steps)
    finally:
        session.close()


def pairs(loop: Loop, steps: int, blocks: int, schedule: Schedule) -> list[tuple[float, float]]:
    """Microseconds of a step, unwatched and watched, per pair of neighbouring blocks."""
    out = []
    loop.run(200)
    with tempfile.TemporaryDirectory() as folder:
        for block in range(blocks):
            times: dict[bool, float] = {}
            for on in (True, False) if block % 2 else (False, True):
                if on:
                    times[on] = watched(loop, steps, str(Path(folder) / str(block)), schedule)
                else:
                    loop.run(WARM_UP)
                    times[on] = loop.run(steps)
            out.append((times[False], times[True]))
    return out


def within_our_calls(loop: Loop, steps: int) -> list[float]:
    """Microseconds that the training thread spends in what torch calls of ours, per step, under ``--always``."""
    spent: list[float] = []
    now = 0.0

    def timed(call: Callable[..., object]) -> Callable[..., object]:
        def around(*given: object, **named: object) -> object:
            nonlocal now
            began = time.perf_counter_ns()
            try:
                return call(*given, **named)
            finally:
                now += time.perf_counter_ns() - began

        return around

    def clocked(*given: Any) -> SimpleNamespace:
        return SimpleNamespace(**{name: timed(call) for name, call in vars(guarded(*given)).items()})

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(capture, "guarded", clocked):
        config = CaptureConfig(folder=folder, schedule=ALWAYS, most_sample_bytes=MOST_SAMPLE_BYTES)
        session = capture.Session(torch, config)
        session.open(whole_process=False)
        try:
            loop.run(WARM_UP)
            for _ in range(steps):
                now = 0.0
                loop.run(1)
                spent.append(now / 1e3)
        finally:
            session.close()
    return spent


def show(title: str, added_us: list[float], *, in_production: bool = False) -> None:
    """One line: the added microseconds with quartiles, and the step from which they are within what is allowed."""
    low, middle, high = statistics.quantiles(added_us, n=4)
    allowed = middle / IN_PRODUCTION / 1000 if in_production else middle / ALLOWED / 1000
    print(f"| {title} | {middle:.0f} us | {low:.0f} to {high:.0f} us | {allowed:.1f} ms |", flush=True)


def added_memory_mb() -> float:
    """What a process takes more at its peak under ``--always``, in MB; 20,000 steps, the median of three pairs."""

    def peak_kib(*words: str) -> int:
        command = [sys.executable, *words, str(script)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=alone, cwd=folder)
        return next(int(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith("peak"))

    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(JOB)
        watched_too = ("-m", "whystall", "run", "-q", "--always")
        return statistics.median((peak_kib(*watched_too) - peak_kib()) * 1024 / 1e6 for _ in range(3))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| between windows | cost per step | quartiles | within 1 % (in production 0.3 %) of steps from |")
    print("|---|--:|---|--:|")
    nothing = Schedule(repeat=0)
    tiny, long, blocks = Loop(4), Loop(4, LONG_S), options.blocks

    def added(schedule: Schedule) -> list[float]:
        return [on - off for off, on in pairs(tiny, STEPS, blocks, schedule)]

    show("steps, backward, optimizer, input (chosen where steps are short)", added(nothing))
    show("in production (`--always`)", added(ALWAYS), in_production=True)
    show("the same, steps of 10 ms", within_our_calls(long, LONG_STEPS), in_production=True)
    with (
        mock.patch.object(capture, "_SHORTEST_STEP_WITH_MODULES_NS", 0),
        mock.patch.object(capture, "_SHORTEST_IN_PRODUCTION_NS", 0),
    ):
        show("with forward times", added(nothing))
        show("in production, with forward times", added(ALWAYS), in_production=True)
        show("the same, steps of 10 ms", within_our_calls(long, LONG_STEPS), in_production=True)
    whole = Schedule(wait=0, warmup=1, active=30)
    inside = pairs(Loop(512), 20, max(options.blocks // 4, 2), whole)
    ratio = statistics.median(on / off for off, on in inside)
    print(f"\nMemory added by `--always`: {added_memory_mb():.0f} MB at the peak.")
    print(
        f"\nMostly inside a window: {ratio:.2f} x a step of {statistics.median(off for off, _ in inside) / 1e3:.1f} ms."
    )


if __name__ == "__main__":
    main()
