"""DDP training of a convolutional load forecaster (2 ranks, gloo)."""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class TCN(nn.Module):
    def __init__(self, channels=8, width=64, horizon=24):
        super().__init__()
        layers = []
        for i, d in enumerate((1, 2, 4, 8)):
            layers += [nn.Conv1d(channels if i == 0 else width, width, 3, padding=d, dilation=d), nn.ReLU()]
        self.net = nn.Sequential(*layers)
        self.head = nn.Linear(width, horizon)

    def forward(self, x):
        return self.head(self.net(x).mean(2))


class Windows:
    def __init__(self, rank, world, length=168, horizon=24):
        g = torch.Generator().manual_seed(0)
        series = torch.randn(400, 8, 1000, generator=g).cumsum(2) * 0.05
        self.series = series[rank::world].contiguous()
        self.length, self.horizon = length, horizon
        self.g = torch.Generator().manual_seed(rank + 1)

    def batch(self, size):
        which = torch.randint(0, len(self.series), (size,), generator=self.g)
        t = int(torch.randint(0, 1000 - self.length - self.horizon, (), generator=self.g))
        block = self.series[which, :, t : t + self.length + self.horizon]
        return block[:, :, : self.length], block[:, 0, self.length :]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(TCN(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    data = Windows(rank, world)

    times = []
    go = torch.ones(1, dtype=torch.int32)
    last = time.perf_counter()
    deadline = last + args.seconds
    while go.item():
        x, y = data.batch(64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            forecast = model(x)
        loss = F.mse_loss(forecast.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(times) % 20 == 19:
            go.fill_(int(time.perf_counter() < deadline))
            dist.broadcast(go, 0)
        now = time.perf_counter()
        times.append(now - last)
        last = now

    if rank == 0:
        print(f"{len(times)} steps, mse {loss.item():.4f}")
        if args.times:
            with open(args.times, "w") as f:
                json.dump(times, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
