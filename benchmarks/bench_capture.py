"""What watching a job costs between windows, and inside one: on and off in turn, within one process.

    python benchmarks/bench_capture.py

A small training loop runs in blocks that are watched and blocks that are not, alternately, so that what else
the machine does falls on both. The ratio is the median of the blocks' ratios, with its quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from whystall.capture.config import CaptureConfig, Schedule
from whystall.capture.session import Session

WARM_UP = 40  # the capture judges by then whether steps are too short to time modules


class Loop:
    """A training loop of about the wanted milliseconds a step."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.loader = DataLoader(TensorDataset(torch.randn(100_000, width)), batch_size=64)
        self.batches = iter(self.loader)

    def run(self, steps: int) -> float:
        """CPU seconds of a step on the training thread (what else the machine does falls on wall time)."""
        started = time.thread_time()
        for _ in range(steps):
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(self.loader)
                batch = next(self.batches)
            self.model(batch[0]).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return (time.thread_time() - started) / steps


def watched(loop: Loop, steps: int, folder: str, schedule: Schedule) -> float:
    """Seconds of a step of a block that is watched."""
    session = Session(torch, CaptureConfig(folder=folder, schedule=schedule))
    session.open(whole_process=False)
    loop.run(WARM_UP)
    try:
        return loop.run(steps)
    finally:
        session.close()


def compare(width: int, steps: int, blocks: int, schedule: Schedule) -> tuple[float, list[float]]:
    """Milliseconds of an unwatched step, and the ratio watched over unwatched of each pair of blocks."""
    loop = Loop(width)
    loop.run(50)
    ratios, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        for block in range(blocks):
            order = (True, False) if block % 2 else (False, True)
            times: dict[bool, float] = {}
            for on in order:
                if on:
                    times[on] = watched(loop, steps, str(Path(folder) / str(block)), schedule)
                else:
                    loop.run(WARM_UP)
                    times[on] = loop.run(steps)
            ratios.append(times[True] / times[False])
            bare.append(times[False] * 1e3)
    return statistics.median(bare), ratios


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| step | | watched / not watched | quartiles |\n|--:|---|--:|---|")
    idle = Schedule(repeat=0)
    for width, steps in ((128, 400), (512, 200), (1536, 40)):
        bare, ratios = compare(width, steps, options.blocks, idle)
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {bare:.2f} ms | between windows | {middle:.4f} | {low:.4f} to {high:.4f} |", flush=True)
    whole = Schedule(wait=0, warmup=1, active=30)
    bare, ratios = compare(512, 20, max(options.blocks // 4, 2), whole)
    print(f"| {bare:.2f} ms | mostly inside a window | {statistics.median(ratios):.2f} | |")


if __name__ == "__main__":
    main()
