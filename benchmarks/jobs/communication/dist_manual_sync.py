"""Two-rank data-parallel training with a hand-written gradient averaging step."""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class DeepTabular(nn.Module):
    def __init__(self, features=40, dim=128, depth=4):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim)) for _ in range(depth)
        )
        self.out = nn.Linear(dim, 5)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)
        param.grad /= size


def average_gradients_flat(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, part in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(part.view_as(g))


def broadcast_parameters(model):
    for param in model.parameters():
        dist.broadcast(param.data, 0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DeepTabular()
    broadcast_parameters(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    sync = average_gradients_flat if args.better else average_gradients
    x = torch.randn(20_000, 40)
    y = x[:, :5].argmax(1)

    times = []
    last = time.perf_counter()
    deadline = last + args.seconds
    go = torch.ones(1, dtype=torch.int32)
    while go.item():
        idx = torch.randint(0, len(x), (256,))
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        sync(model)
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
        go.fill_(int(now < deadline))
        dist.broadcast(go, 0)

    if rank == 0:
        print(f"{len(times)} steps, loss {loss.item():.3f}")
        if args.times:
            with open(args.times, "w") as f:
                json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
