"""Adapter tuning for many small tasks at once (one adapter per task and layer), run through accelerate."""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

TASKS, LAYERS, D, R = 16, 6, 96, 8


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.a, self.b = nn.Linear(D, R), nn.Linear(R, D)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return x + self.b(F.relu(self.a(self.norm(x))))


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(40, D)
        self.base = nn.ModuleList(nn.Linear(D, D) for _ in range(LAYERS))
        self.adapters = nn.ModuleList(nn.ModuleList(Adapter() for _ in range(TASKS)) for _ in range(LAYERS))
        self.heads = nn.ModuleList(nn.Linear(D, 4) for _ in range(TASKS))

    def forward(self, x):
        x = self.inp(x)
        parts = x.chunk(TASKS)
        outs = []
        for t, h in enumerate(parts):
            for base, ads in zip(self.base, self.adapters):
                h = ads[t](F.gelu(base(h)))
            outs.append(self.heads[t](h))
        return torch.cat(outs)


def param_groups(model, wd):
    decay = [p for n, p in model.named_parameters() if p.ndim > 1]
    rest = [p for n, p in model.named_parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    acc = Accelerator(cpu=True)
    model = MultiTask()
    opt = torch.optim.AdamW(param_groups(model, 0.01), lr=1e-3, **({"fused": True} if args.better else {}))
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=100)
    x = torch.randn(16_000, 40)
    y = (x[:, :4] + 0.1 * torch.randn(16_000, 4)).argmax(1)
    model, opt, loader, sched = acc.prepare(
        model, opt, DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True, drop_last=True), sched
    )
    times, stop, begin = [], False, time.perf_counter()
    while not stop:
        t0 = time.perf_counter()
        for xb, yb in loader:
            with acc.accumulate(model):
                loss = F.cross_entropy(model(xb), yb)
                acc.backward(loss)
                opt.step()
                sched.step()
                opt.zero_grad()
            t1 = time.perf_counter()
            times.append(t1 - t0)
            t0 = t1
            if len(times) % 50 == 0:
                acc.print(f"step {len(times)} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")
            if t1 - begin > args.seconds:
                stop = True
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
