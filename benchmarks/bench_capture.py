"""What watching a job costs between windows, and inside one: on and off in turn, within one process.

    python benchmarks/bench_capture.py

The cost of watching is so much time per step, whatever the step does. It is measured on a step that does next
to nothing, where it stands out of the noise of a shared machine, in blocks that are watched and blocks that
are not, alternately; from it follows how long a step must be for the cost to stay within one per cent.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from whystall.capture import session as capture
from whystall.capture.config import CaptureConfig, Schedule

STEPS = 300
WARM_UP = 40  # the capture judges by then whether steps are too short to time modules
ALLOWED = 0.01


class Loop:
    """A training loop around a model of the wanted width."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
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
        return (time.thread_time() - started) / steps * 1e6


def watched(loop: Loop, steps: int, folder: str, schedule: Schedule) -> float:
    """The same in a block that is watched."""
    session = capture.Session(torch, CaptureConfig(folder=folder, schedule=schedule))
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


def show(title: str, measured: list[tuple[float, float]]) -> None:
    """One line: the added microseconds with quartiles, and the step from which they are within one per cent."""
    low, middle, high = statistics.quantiles([on - off for off, on in measured], n=4)
    shortest = middle / ALLOWED / 1000
    print(f"| {title} | {middle:.0f} us | {low:.0f} to {high:.0f} us | {shortest:.1f} ms |", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| between windows | cost per step | quartiles | within 1 % of steps from |\n|---|--:|---|--:|")
    nothing = Schedule(repeat=0)
    tiny = Loop(4)
    show(
        "steps, backward, optimizer, input (chosen where steps are short)", pairs(tiny, STEPS, options.blocks, nothing)
    )
    with mock.patch.object(capture, "_SHORTEST_STEP_WITH_MODULES_NS", 0):
        show("with forward times", pairs(tiny, STEPS, options.blocks, nothing))
    whole = Schedule(wait=0, warmup=1, active=30)
    inside = pairs(Loop(512), 20, max(options.blocks // 4, 2), whole)
    ratio = statistics.median(on / off for off, on in inside)
    print(
        f"\nMostly inside a window: {ratio:.2f} x a step of {statistics.median(off for off, _ in inside) / 1e3:.1f} ms."
    )


if __name__ == "__main__":
    main()
