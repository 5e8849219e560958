"""plantlib training run: quality grade of a batch from the process tags (MLP-mixer over tags)."""

import argparse
import json
import math
import time

import torch
from torch import nn


class PlantAdamW(torch.optim.Optimizer):
    """AdamW as specified in the plantlib handbook."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["t"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                s["t"] += 1
                s["m"] = b1 * s["m"] + (1 - b1) * p.grad
                s["v"] = b2 * s["v"] + (1 - b2) * p.grad**2
                m_hat = s["m"] / (1 - b1 ** s["t"])
                v_hat = s["v"] / (1 - b2 ** s["t"])
                update = m_hat / (torch.sqrt(v_hat) + group["eps"])
                p.data = p.data - group["lr"] * (update + group["weight_decay"] * p.data)


class Mixer(nn.Module):
    def __init__(self, tags, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tag = nn.Sequential(nn.Linear(tags, tags * 2), nn.GELU(), nn.Linear(tags * 2, tags))
        self.chan = nn.Sequential(nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim))

    def forward(self, x):
        x = x + self.tag(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.n2(x))


class GradeNet(nn.Module):
    def __init__(self, tags=24, window=64, dim=384, depth=4, grades=5):
        super().__init__()
        self.lift = nn.Linear(window, dim)
        self.mix = nn.Sequential(*[Mixer(tags, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, grades)

    def forward(self, x):
        return self.head(self.mix(self.lift(x)).mean(1))


class Run:
    def __init__(self, stock):
        self.model = GradeNet()
        params = list(self.model.parameters())
        self.opt = torch.optim.AdamW(params, lr=1e-3, weight_decay=1e-2, fused=True) if stock else PlantAdamW(params)
        self.warm = 100
        self.x = torch.randn(512, 24, 64)
        self.y = torch.randint(0, 5, (512,))
        self.times = []

    def schedule(self, step):
        lr = 1e-3 * min(1.0, (step + 1) / self.warm) * 0.5 * (1 + math.cos(math.pi * min(step, 5000) / 5000))
        for g in self.opt.param_groups:
            g["lr"] = lr

    def one(self, step):
        self.schedule(step)
        idx = torch.randint(0, len(self.x), (4,))
        loss = nn.functional.cross_entropy(self.model(self.x[idx]), self.y[idx], label_smoothing=0.05)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss

    def loop(self, seconds):
        t0 = time.perf_counter()
        n = 0
        while True:
            t = time.perf_counter()
            loss = self.one(n)
            end = time.perf_counter()
            self.times.append(end - t)
            n += 1
            if n % 50 == 0:
                print(f"step {n} loss {loss.item():.3f}")
            if end - t0 > seconds:
                return


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12.0)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(3)
    run = Run(stock=args.better)
    run.loop(args.seconds)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(run.times, f)


if __name__ == "__main__":
    main()
