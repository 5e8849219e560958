"""Electric load forecasting: patch transformer on hourly series. DataLoader with one worker."""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CONTEXT, HORIZON, PATCH = 336, 24, 12


class LoadSeries(Dataset):
    def __init__(self, customers=64, hours=6000, seed=0):
        rng = np.random.default_rng(seed)
        t = np.arange(hours)
        base = np.sin(t * 2 * np.pi / 24)[None] * rng.uniform(0.5, 2, (customers, 1))
        x = (base + 0.3 * rng.standard_normal((customers, hours))).astype(np.float32)
        x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        self.x = torch.from_numpy(x)
        self.per = hours - CONTEXT - HORIZON

    def __len__(self):
        return self.per * self.x.size(0)

    def __getitem__(self, i):
        c, s = divmod(i, self.per)
        w = self.x[c, s : s + CONTEXT + HORIZON]
        return w[:CONTEXT], w[CONTEXT:]


class PatchFormer(nn.Module):
    def __init__(self, d=160, depth=3):
        super().__init__()
        n = CONTEXT // PATCH
        self.inp = nn.Linear(PATCH, d)
        self.pos = nn.Parameter(torch.randn(n, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(n * d, HORIZON)

    def forward(self, x):
        h = self.inp(x.unflatten(1, (-1, PATCH))) + self.pos
        return self.out(self.enc(h).flatten(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()

    torch.manual_seed(23)
    loader = DataLoader(LoadSeries(), batch_size=48, shuffle=True, num_workers=1, prefetch_factor=4, drop_last=True)
    model = PatchFormer()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, fused=True)

    times, smooth, best = [], None, float("inf")
    with tempfile.TemporaryDirectory() as folder:
        begin = last = time.perf_counter()
        for x, y in loader:
            loss = F.l1_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            v = loss.item()
            smooth = v if smooth is None else 0.95 * smooth + 0.05 * v
            if len(times) % 200 == 199 and smooth < best:
                best = smooth
                torch.save(model.state_dict(), os.path.join(folder, "best.pt"))
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 50 == 0:
                print(f"step {len(times)} mae {smooth:.4f}")
            if now - begin > args.seconds:
                break

    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
