"""Next-frame temperature forecast from yearly .npy grids."""

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

HISTORY = 4


class GridSequences(Dataset):
    """Samples (HISTORY frames -> next frame) out of one array per year."""

    def __init__(self, root, lazy=False):
        self.paths = sorted(os.path.join(root, f) for f in os.listdir(root) if f.endswith(".npy"))
        self.maps = [np.load(p, mmap_mode="r") for p in self.paths]
        self.index = [(y, t) for y, grid in enumerate(self.maps) for t in range(len(grid) - HISTORY)]
        self.lazy = lazy

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        year, t = self.index[i]
        if self.lazy:
            grid = self.maps[year]
        else:
            grid = np.load(self.paths[year])
        window = np.array(grid[t : t + HISTORY + 1], dtype=np.float32)
        window = (window - 280.0) / 20.0
        return torch.from_numpy(window[:HISTORY]), torch.from_numpy(window[HISTORY:])


class FrameNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inp = nn.Conv2d(HISTORY, width, 3, padding=1)
        self.mid = nn.Conv2d(width, width, 3, padding=2, dilation=2)
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x):
        h = F.silu(self.inp(x))
        h = h + F.silu(self.mid(h))
        return x[:, -1:] + self.out(h)


def make_years(root, years=4, frames=730):
    rng = np.random.default_rng(1)
    for y in range(years):
        base = 280 + 10 * rng.standard_normal((1, 64, 64))
        walk = rng.standard_normal((frames, 64, 64)).cumsum(0) * 0.2
        np.save(os.path.join(root, f"t2m_{2015 + y}.npy"), (base + walk).astype(np.float32))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    times = []
    with tempfile.TemporaryDirectory() as root:
        make_years(root)
        loader = DataLoader(GridSequences(root, lazy=args.better), batch_size=8, shuffle=True, drop_last=True)
        model = FrameNet()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        last = time.perf_counter()
        stop = last + args.seconds
        while last < stop:
            for past, future in loader:
                loss = F.mse_loss(model(past), future)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if now >= stop:
                    break
        print("rmse", loss.detach().sqrt().item() * 20.0)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
