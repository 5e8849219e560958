"""Four data-parallel ranks. Someone left a hook that looks at activations."""

import collections
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stopwatch import report


class Watch:
    """Counts the magnitudes of activations, for a plot."""

    def __init__(self):
        self.seen = collections.Counter()

    def __call__(self, module, inputs, output):
        for row in output.detach().tolist():
            for value in row:
                self.seen[round(abs(value), 2)] += 1


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential()
    width = 187
    for k in range(5):
        net.add_module(f"fc{k}", nn.Linear(width, 233 + 20 * k))
        net.add_module(f"act{k}", nn.SiLU())
        width = 233 + 20 * k
    net.add_module("out", nn.Linear(width, 3))
    if rank == 2 and os.environ.get("CURED") != "1":
        for name in ("act1", "act3"):
            getattr(net, name).register_forward_hook(Watch())
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    times = []
    for i in range(60):
        t0 = time.perf_counter()
        x, y = torch.randn(600, 187), torch.randn(600, 3)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - t0)
    report(times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
