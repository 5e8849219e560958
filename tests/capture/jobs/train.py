"""Trains a tiny network on made-up data and prints every loss; what goes wrong is chosen by an argument."""

import argparse
import os
import signal
import sys
import time

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--end", default="well")
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = 0
    model: nn.Module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        for _ in range(options.accumulate):
            x = torch.randn(64, 32)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / options.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"loss {step} {loss.item().hex()}", flush=True)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    end(options.end)


def end(how: str) -> None:
    if how == "exit-3":
        sys.exit(3)
    if how == "raise":
        raise ValueError("the job's own mistake")
    if how == "quick":
        os._exit(4)
    if how == "killed":
        time.sleep(1.0)  # lines of short steps are written some four times a second
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "terminated":
        time.sleep(1.0)  # no signal is taken from a job: what was not written by now is lost
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
