"""Land-cover segmentation on multispectral scenes (random crops, small U-Net)."""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

BANDS, CLASSES, CROP, SCENE = 6, 8, 64, 384


def write_scenes(root, count, rng):
    """Stand-in for the export of the GIS team: one npz archive per scene."""
    paths = []
    for i in range(count):
        base = rng.normal(size=(BANDS, SCENE // 8, SCENE // 8)).astype(np.float32)
        image = np.kron(base, np.ones((1, 8, 8), np.float32)) * 900 + 3000
        image = (image + rng.integers(0, 40, image.shape)).clip(0, 10000).astype(np.uint16)
        label = (image.sum(0) // 500 % CLASSES).astype(np.uint8)
        path = os.path.join(root, f"scene_{i:03d}.npz")
        np.savez_compressed(path, image=image, label=label)
        paths.append(path)
    return paths


class SceneCrops(Dataset):
    def __init__(self, paths, crops_per_scene, unpack=False):
        self.paths = paths
        self.crops_per_scene = crops_per_scene
        self.arrays = None
        if unpack:
            self.arrays = []
            for p in paths:
                with np.load(p) as z:
                    self.arrays.append((z["image"], z["label"]))

    def __len__(self):
        return len(self.paths) * self.crops_per_scene

    def read(self, scene):
        if self.arrays is not None:
            return self.arrays[scene]
        with np.load(self.paths[scene]) as z:
            return z["image"], z["label"]

    def __getitem__(self, index):
        image, label = self.read(index % len(self.paths))
        y, x = np.random.randint(0, SCENE - CROP, size=2)
        image = image[:, y : y + CROP, x : x + CROP].astype(np.float32) / 10000.0
        label = label[y : y + CROP, x : x + CROP].astype(np.int64)
        if np.random.rand() < 0.5:
            image, label = image[:, :, ::-1].copy(), label[:, ::-1].copy()
        return torch.from_numpy(image), torch.from_numpy(label)


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class SmallUNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.d1, self.d2, self.mid = block(BANDS, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.u2, self.u1 = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        c = self.u2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        c = self.u1(torch.cat([F.interpolate(c, scale_factor=2.0), a], 1))
        return self.head(c)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=16)
    ap.add_argument("--batch", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as root:
        paths = write_scenes(root, 12, rng)
        data = SceneCrops(paths, 64, unpack=args.better)
        loader = DataLoader(data, args.batch, sampler=RandomSampler(data, True, 10**6), drop_last=True)
        model = SmallUNet()
        opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
        times, running = [], 0.0
        start = last = time.perf_counter()
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running = 0.95 * running + 0.05 * loss.item()
            if step % 50 == 0:
                print(f"step {step} loss {running:.4f}")
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now - start > args.seconds:
                break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
