"""MLP-Mixer on satellite tiles, two processes, gradients averaged by hand."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

TILE, PATCH, BANDS, LAND = 32, 8, 4, 6
TOKENS = (TILE // PATCH) ** 2


def mlp(n, hidden):
    return nn.Sequential(nn.Linear(n, hidden), nn.GELU(), nn.Linear(hidden, n))


class MixerLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = mlp(TOKENS, 32)
        self.channels = mlp(dim, 2 * dim)

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, dim=64, depth=8):
        super().__init__()
        self.patch = nn.Conv2d(BANDS, dim, PATCH, PATCH)
        self.layers = nn.Sequential(*[MixerLayer(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, LAND)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(x)).mean(1))


def average_each(params, world):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= world


def average_flat(params, world):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in params:
        n = p.numel()
        p.grad.copy_(flat[offset : offset + n].view_as(p))
        offset += n


def broadcast_weights(model):
    for p in model.parameters():
        dist.broadcast(p.data, 0)


def tiles(rank, n=1024):
    g = torch.Generator().manual_seed(rank)
    y = torch.randint(0, LAND, (n,), generator=g)
    x = torch.randn(n, BANDS, TILE, TILE, generator=g)
    x[:, 0] += y[:, None, None] * 0.3
    return x, y


class Worker:
    def __init__(self, average):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = Mixer()
        broadcast_weights(self.model)
        self.params = [p for p in self.model.parameters() if p.requires_grad]
        self.opt = torch.optim.SGD(self.params, lr=0.05, momentum=0.9)
        self.average = average
        self.x, self.y = tiles(self.rank)

    def step(self, batch=32):
        idx = torch.randint(0, len(self.x), (batch,))
        loss = F.cross_entropy(self.model(self.x[idx]), self.y[idx])
        self.opt.zero_grad()
        loss.backward()
        self.average(self.params, self.world)
        self.opt.step()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worker = Worker(average_flat if args.better else average_each)
    laps, go = [], torch.ones(1)
    t0 = prev = time.perf_counter()
    while go.item():
        loss = worker.step()
        if worker.rank == 0 and len(laps) % 50 == 0:
            print(len(laps), f"{loss.item():.3f}", flush=True)
        now = time.perf_counter()
        laps.append(now - prev)
        prev = now
        go[0] = float(now - t0 < args.seconds)
        dist.broadcast(go, 0)
    if worker.rank == 0 and args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(map(str, laps)) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
