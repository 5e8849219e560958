"""Two-stage pipeline by hand: send/recv of activations and of their gradients."""

import os, time
import torch
from torch import nn
import torch.distributed as dist
from stopwatch import report

WIDTH, LENGTH, MICRO, ROWS = 156, 47, 6, 3
SPLIT = [6, 6] if os.environ.get("CURED") == "1" else [3, 9]


def blocks(n):
    return nn.Sequential(
        *[nn.TransformerEncoderLayer(WIDTH, 6, 540, dropout=0.0, batch_first=True, norm_first=True) for _ in range(n)]
    )


def first_stage(stage, optimizer):
    outs, pending = [], []
    for _ in range(MICRO):
        y = stage(torch.randn(ROWS, LENGTH, WIDTH))
        outs.append(y)
        pending.append(dist.isend(y.detach(), 1))
    for y in outs:
        g = torch.empty_like(y)
        dist.recv(g, 1)
        y.backward(g)
    for w in pending:
        w.wait()
    optimizer.step()
    optimizer.zero_grad()


def last_stage(stage, optimizer):
    pending = []
    for _ in range(MICRO):
        x = torch.empty(ROWS, LENGTH, WIDTH)
        dist.recv(x, 0)
        x.requires_grad_()
        loss = stage(x).square().mean() / MICRO
        loss.backward()
        pending.append(dist.isend(x.grad, 0))
    for w in pending:
        w.wait()
    optimizer.step()
    optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    me = dist.get_rank()
    torch.manual_seed(me)
    stage = blocks(SPLIT[me])
    optimizer = torch.optim.Adam(stage.parameters(), lr=1e-4)
    turn = first_stage if me == 0 else last_stage
    seconds = []
    for step in range(52):
        t = time.perf_counter()
        turn(stage, optimizer)
        seconds.append(time.perf_counter() - t)
    report(seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
