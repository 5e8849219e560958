"""Patch transformer for electricity load forecasting, sharded parameters, accumulated batches."""

import argparse
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass
class Settings:
    patches: int = 48
    patch: int = 16
    horizon: int = 96
    width: int = 160
    depth: int = 4
    heads: int = 4
    rows: int = 8
    accumulate: int = 3
    save_every: int = 40
    valid_every: int = 60


class Forecaster(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.inp = nn.Linear(s.patch, s.width)
        self.place = nn.Parameter(torch.zeros(s.patches, s.width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(s.width, s.heads, 4 * s.width, 0.0, batch_first=True, norm_first=True)
            for _ in range(s.depth)
        )
        self.out = nn.Linear(s.width, s.horizon)

    def forward(self, x):
        h = self.inp(x) + self.place
        for b in self.blocks:
            h = b(h)
        return self.out(h.mean(1))


class Meters:
    def __init__(self, s, seed):
        g = torch.Generator().manual_seed(seed)
        n = s.patches * s.patch + s.horizon
        t = torch.arange(40_000.0)
        self.series = torch.sin(t / 24) + 0.4 * torch.sin(t / 168) + 0.2 * torch.randn(40_000, generator=g)
        self.s, self.n, self.g = s, n, g

    def rows(self):
        s = self.s
        starts = torch.randint(0, 40_000 - self.n, (s.rows, 1), generator=self.g)
        w = self.series[starts + torch.arange(self.n)]
        return w[:, : -s.horizon].reshape(s.rows, s.patches, s.patch), w[:, -s.horizon :]


class Run:
    def __init__(self, s):
        self.s, self.rank = s, dist.get_rank()
        torch.manual_seed(0)
        self.net = Forecaster(s)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for b in self.net.blocks:
            fully_shard(b, mesh=mesh, reshard_after_forward=False)
        fully_shard(self.net, mesh=mesh, reshard_after_forward=False)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=3e-4, fused=True)
        self.data, self.held_out = Meters(s, 60 + self.rank), Meters(s, 900 + self.rank)
        self.folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "out")

    def train_step(self):
        for m in range(self.s.accumulate):
            final = m == self.s.accumulate - 1
            self.net.set_requires_gradient_sync(final)
            self.net.set_reshard_after_backward(final)
            x, y = self.data.rows()
            loss = (self.net(x) - y).abs().mean() / self.s.accumulate
            loss.backward()
        self.opt.step()
        self.opt.zero_grad()
        return loss * self.s.accumulate

    @torch.no_grad()
    def validate(self):
        x, y = self.held_out.rows()
        err = (self.net(x) - y).abs().mean()
        dist.all_reduce(err)
        return err.item() / dist.get_world_size()

    def save(self):
        full = {k: v.full_tensor() for k, v in self.net.state_dict().items()}
        if self.rank == 0:
            path = os.path.join(self.folder, f"forecast{os.environ.get('MASTER_PORT')}.pt")
            torch.save(full, path)
            os.remove(path)
        dist.barrier()

    def fit(self, steps):
        took = []
        for i in range(steps):
            t = time.perf_counter()
            loss = self.train_step()
            if (i + 1) % self.s.save_every == 0:
                self.save()
            if (i + 1) % self.s.valid_every == 0:
                v = self.validate()
                if self.rank == 0:
                    print(f"{i + 1}: train {loss.item():.4f} valid {v:.4f}", flush=True)
            took.append(time.perf_counter() - t)
        return took


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--times")
    a = p.parse_args()
    dist.init_process_group("gloo")
    took = Run(Settings()).fit(int(os.environ.get("STEPS", 120)))
    if dist.get_rank() == 0 and a.times:
        with open(a.times, "w") as f:
            f.writelines(f"{t:.6f}\n" for t in took)
    dist.destroy_process_group()
