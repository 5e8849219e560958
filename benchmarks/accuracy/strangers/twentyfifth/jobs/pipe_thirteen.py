"""Thirteen equal blocks on two stages: 7 and 6, as even as it gets. Twelve micro-batches, one forward one backward."""

import time

import torch
import torch.distributed as dist
from torch import nn

from stopwatch import report

BLOCKS, MICRO, WIDTH, ROWS = 13, 12, 410, 230


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = nn.Sequential(*[Residual() for _ in range((BLOCKS + 1) // 2 if rank == 0 else BLOCKS // 2)])
    opt = torch.optim.SGD(stage.parameters(), lr=1e-4, momentum=0.8, fused=True)
    times = []

    def forward_first(kept, sends):
        y = stage(torch.randn(ROWS, WIDTH))
        kept.append(y)
        sends.append(dist.isend(y.detach(), 1))

    def backward_first(kept):
        y = kept.pop(0)
        g = torch.empty_like(y)
        dist.recv(g, 1)
        y.backward(g)

    for step in range(45):
        t0 = time.perf_counter()
        sends = []
        if rank == 0:
            kept = []
            forward_first(kept, sends)
            forward_first(kept, sends)
            for _ in range(MICRO - 2):
                backward_first(kept)
                forward_first(kept, sends)
            backward_first(kept)
            backward_first(kept)
        else:
            for _ in range(MICRO):
                x = torch.empty(ROWS, WIDTH)
                dist.recv(x, 0)
                x.requires_grad_()
                (stage(x).square().mean() / MICRO).backward()
                sends.append(dist.isend(x.grad, 0))
        for s in sends:
            s.wait()
        opt.step()
        opt.zero_grad()
        times.append(time.perf_counter() - t0)
    report(times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
