"""Particle event classifier in three phases: prepare table, train, calibrate and export."""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

PARTICLES, FEATS, BATCH = 24, 6, 128


def raw_events(n, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    pt = rng.exponential(1.0 + 0.3 * y[:, None], (n, PARTICLES))
    eta, phi = rng.normal(0, 1.2 - 0.2 * y[:, None], (n, PARTICLES)), rng.uniform(-np.pi, np.pi, (n, PARTICLES))
    count = rng.integers(6, PARTICLES + 1, n)
    return pt, eta, phi, count, y


def prepare(folder, n=6000):
    """Row by row on purpose: the experiment's text format comes one event a line."""
    pt, eta, phi, count, y = raw_events(n)
    path = os.path.join(folder, "events.jsonl")
    with open(path, "w") as f:
        for i in range(n):
            k = count[i]
            f.write(
                json.dumps(
                    {
                        "pt": pt[i, :k].round(3).tolist(),
                        "eta": eta[i, :k].round(3).tolist(),
                        "phi": phi[i, :k].round(3).tolist(),
                        "y": int(y[i]),
                    }
                )
                + "\n"
            )
    x, mask, target = np.zeros((n, PARTICLES, FEATS), np.float32), np.zeros((n, PARTICLES), bool), []
    with open(path) as f:
        for i, line in enumerate(f):
            e = json.loads(line)
            k = len(e["pt"])
            p, h, a = map(np.array, (e["pt"], e["eta"], e["phi"]))
            x[i, :k] = np.stack([p, h, np.sin(a), np.cos(a), np.log1p(p), p / p.sum()], 1)
            mask[i, :k] = True
            target.append(e["y"])
    return torch.from_numpy(x), torch.from_numpy(mask), torch.tensor(target, dtype=torch.float32)


class DeepSet(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.phi = nn.Sequential(
            nn.Linear(FEATS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.rho = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.log_temp = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x, mask):
        h = self.phi(x) * mask.unsqueeze(-1)
        pooled = torch.cat([h.sum(1) / mask.sum(1, keepdim=True), h.amax(1)], 1)
        return self.rho(pooled).squeeze(1)


def train(model, x, mask, y, seconds):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    laps, n = [], int(0.8 * len(y))
    t0 = prev = time.perf_counter()
    while prev - t0 < seconds:
        for idx in torch.randperm(n).split(BATCH):
            loss = F.binary_cross_entropy_with_logits(model(x[idx], mask[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            laps.append(now - prev)
            prev = now
            if now - t0 >= seconds:
                break
        print(f"{len(laps)} steps, loss {loss.item():.4f}")
    return laps


def calibrate(model, x, mask, y):
    with torch.no_grad():
        logits = model(x, mask)
    grid = torch.linspace(-1, 1, 41)
    nll = torch.stack([F.binary_cross_entropy_with_logits(logits / t.exp(), y) for t in grid])
    model.log_temp.fill_(grid[nll.argmin()].item())
    return nll.min().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        x, mask, y = prepare(folder)
        model = DeepSet()
        laps = train(model, x, mask, y, args.seconds)
        cut = int(0.8 * len(y))
        for _ in range(3):
            nll = calibrate(model, x[cut:], mask[cut:], y[cut:])
        torch.save(model.state_dict(), os.path.join(folder, "final.pt"))
        print(f"calibrated nll {nll:.4f}, temperature {model.log_temp.exp().item():.2f}")
    if args.times:
        np.savetxt(args.times, laps)


if __name__ == "__main__":
    main()
