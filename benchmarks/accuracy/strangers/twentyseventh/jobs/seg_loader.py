"""Road-scene segmentation trained from augmented tiles; a DataLoader with worker processes feeds a U-Net."""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CURED = os.environ.get("CURED") == "1"
STEPS = int(os.environ.get("STEPS", 120))
TILE, CLASSES, BATCH, TILES = 64, 8, 8, 240


class Tiles(Dataset):
    def __init__(self, n=TILES, seed=0):
        rng = np.random.default_rng(seed)
        self.images = rng.integers(0, 255, (n, TILE + 16, TILE + 16, 3), dtype=np.uint8)
        self.masks = rng.integers(0, CLASSES, (n, TILE + 16, TILE + 16), dtype=np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        rng = np.random.default_rng()
        y, x = rng.integers(0, 16, 2)
        img = self.images[i, y : y + TILE, x : x + TILE].astype(np.float32) / 255
        mask = self.masks[i, y : y + TILE, x : x + TILE]
        if rng.random() < 0.5:
            img, mask = img[:, ::-1], mask[:, ::-1]
        img = np.clip(img * rng.uniform(0.8, 1.2) + rng.uniform(-0.1, 0.1), 0, 1)
        return torch.from_numpy(img.transpose(2, 0, 1).copy()).float(), torch.from_numpy(mask.astype(np.int64))


def make_loader(data):
    opts = dict(batch_size=BATCH, shuffle=True, drop_last=True, num_workers=1, prefetch_factor=4)
    opts["multiprocessing_context"] = "spawn"
    opts["persistent_workers"] = CURED
    return DataLoader(data, **opts)


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.e1, self.e2, self.e3 = conv(3, w), conv(w, 2 * w), conv(2 * w, 4 * w)
        self.mid = conv(4 * w, 4 * w)
        self.d2, self.d1 = conv(6 * w, 2 * w), conv(3 * w, w)
        self.out = nn.Conv2d(w, CLASSES, 1)

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(F.max_pool2d(a, 2))
        c = self.mid(self.e3(F.max_pool2d(b, 2)))
        b = self.d2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        a = self.d1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        return self.out(a)


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = UNet()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.loader = make_loader(Tiles())

    def batches(self):
        while True:
            for pair in self.loader:
                yield pair

    def fit(self, steps):
        feed, times = self.batches(), []
        for step in range(steps):
            t0 = time.perf_counter()
            x, y = next(feed)
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if step % 30 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            times.append(time.perf_counter() - t0)
        feed.close()
        return times


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--times")
    args = ap.parse_args()
    times = Trainer().fit(STEPS)
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
