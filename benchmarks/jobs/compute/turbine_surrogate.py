"""Surrogate model for a turbine-blade solver: 36 design variables to 20 stress/temperature probes."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

N_IN, N_OUT = 36, 20


def run_solver(n, seed, opt):
    """Cheap stand-in for the solver archive: smooth random response surfaces."""
    rng = np.random.default_rng(seed)
    design = rng.uniform(-1, 1, (n, N_IN))
    w1 = rng.normal(0, 1 / np.sqrt(N_IN), (N_IN, 64))
    w2 = rng.normal(0, 1 / 8, (64, N_OUT))
    probe = np.tanh(2 * design @ w1) @ w2 + 0.1 * np.sin(3 * design[:, :N_OUT])
    probe += rng.normal(0, 0.01, probe.shape)
    table = np.concatenate([design, probe], axis=1)
    return table.astype(np.float32) if opt.better else table


class Archive(Dataset):
    def __init__(self, table):
        self.mean, self.std = table.mean(0), table.std(0)
        self.rows = torch.from_numpy((table - self.mean) / self.std)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        rows = self.rows[idx]
        return rows[:, :N_IN], rows[:, N_IN:]


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Surrogate(nn.Module):
    def __init__(self, width=224, depth=3):
        super().__init__()
        self.inp = nn.Linear(N_IN, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.mean = nn.Linear(width, N_OUT)
        self.logvar = nn.Linear(width, N_OUT)

    def forward(self, x):
        h = self.layers(self.inp(x))
        return self.mean(h), self.logvar(h).clamp(-8, 4)


def nll(mean, logvar, target):
    return 0.5 * (logvar + (target - mean).square() * torch.exp(-logvar)).mean()


def make_loader(data, batch):
    sampler = BatchSampler(RandomSampler(data), batch, drop_last=True)
    return DataLoader(data, sampler=sampler, batch_size=None)


@torch.inference_mode()
def probe_error(model, data):
    x, y = data[torch.arange(min(2048, len(data)))]
    return (model(x)[0] - y).square().mean().sqrt().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--batch", type=int, default=384)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    opt = ap.parse_args()
    torch.manual_seed(0)
    data = Archive(run_solver(16000, 1, opt))
    loader = make_loader(data, opt.batch)
    model = Surrogate().to(data.rows.dtype)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    times, epoch = [], 0
    begin = last = time.perf_counter()
    while last - begin < opt.seconds:
        epoch += 1
        for x, y in loader:
            mean, logvar = model(x)
            loss = nll(mean, logvar, y)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optim.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - begin >= opt.seconds:
                break
        print(f"epoch {epoch} nll {loss.item():.4f}")
    print(f"probe rmse {probe_error(model, data):.4f} (standardised)")
    if opt.times:
        with open(opt.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
