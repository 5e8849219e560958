"""Land-cover classification of satellite tiles kept in an .npz archive (one array per scene)."""

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

SCENES, SIDE, TILE, BANDS, CLASSES = 16, 96, 32, 4, 6


def write_archive(path):
    rng = np.random.default_rng(0)
    arrays = {}
    for s in range(SCENES):
        img = rng.integers(0, 64, (SIDE, SIDE, BANDS), dtype=np.uint16).cumsum(0).astype(np.uint16)
        arrays[f"scene_{s:02d}"] = img % 4096
        arrays[f"label_{s:02d}"] = rng.integers(0, CLASSES, (SIDE // TILE, SIDE // TILE))
    np.savez_compressed(path, **arrays)


class Tiles(Dataset):
    def __init__(self, path, in_memory):
        self.archive = np.load(path)
        if in_memory:
            self.archive = {k: self.archive[k] for k in self.archive.files}
        per = (SIDE // TILE) ** 2
        self.index = [(s, k // (SIDE // TILE), k % (SIDE // TILE)) for s in range(SCENES) for k in range(per)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        s, r, c = self.index[i]
        scene = self.archive[f"scene_{s:02d}"]
        label = self.archive[f"label_{s:02d}"][r, c]
        tile = scene[r * TILE : (r + 1) * TILE, c * TILE : (c + 1) * TILE]
        x = torch.from_numpy(tile.astype(np.float32) / 2048 - 1).permute(2, 0, 1)
        return x, int(label)


class Net(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.c1 = nn.Conv2d(BANDS, w, 3, 2, 1)
        self.c2 = nn.Conv2d(w, 2 * w, 3, 2, 1)
        self.c3 = nn.Conv2d(2 * w, 4 * w, 3, 1, 1)
        self.fc = nn.Linear(4 * w, CLASSES)

    def forward(self, x):
        for c in (self.c1, self.c2, self.c3):
            x = F.relu(c(x))
        return self.fc(x.mean((2, 3)))


def fit(args, path):
    torch.manual_seed(0)
    loader = DataLoader(Tiles(path, args.better), batch_size=24, shuffle=True, drop_last=True)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    times, begin, epoch = [], time.perf_counter(), 0
    while True:
        correct = seen = 0
        mark = time.perf_counter()
        for x, y in loader:
            out = net(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (out.argmax(1) == y).sum().item()
            seen += len(y)
            now = time.perf_counter()
            times.append(now - mark)
            mark = now
            if now - begin > args.seconds:
                return times
        epoch += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch} acc {correct / seen:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "scenes.npz")
        write_archive(path)
        ts = fit(args, path)
    print(len(ts), "steps")
    if args.times:
        json.dump(ts, open(args.times, "w"))
