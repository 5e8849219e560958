"""Leaf disease classifier reading phone photos from disk (the photos are drawn here first, into a temporary folder)."""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN, STD = 0.45, 0.25


def draw_photos(folder, n=48, size=(1280, 960), classes=4):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        small = rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)
        small[..., i % 3] //= 1 + i % classes
        path = os.path.join(folder, f"leaf_{i:04d}.jpg")
        Image.fromarray(small).resize(size, Image.BILINEAR).save(path, quality=88)
        rows.append((path, i % classes))
    return rows


class Photos(Dataset):
    def __init__(self, rows, side=96, opener=None):
        self.rows, self.side = rows, side
        self.opener = opener or self.open_photo

    def open_photo(self, path):
        return Image.open(path).convert("RGB")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        path, label = self.rows[i]
        image = self.opener(path).resize((self.side, self.side), Image.BILINEAR)
        x = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
        if i % 2:
            x = x.flip(2)
        return (x - MEAN) / STD, label


def open_draft(path):
    image = Image.open(path)
    image.draft("RGB", (160, 120))
    return image.convert("RGB")


def network(classes=4):
    def stage(a, b):
        return [
            nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(),
            nn.Conv2d(b, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(),
        ]

    return nn.Sequential(
        *stage(3, 24), *stage(24, 48), *stage(48, 96), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes)
    ).to(memory_format=torch.channels_last)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        data = Photos(draw_photos(folder), opener=open_draft if args.better else None)
        loader = DataLoader(data, batch_size=12, shuffle=True)
        net = network()
        opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
        times, begin = [], time.perf_counter()
        last = begin
        while last - begin < args.seconds:
            for x, y in loader:
                loss = nn.functional.cross_entropy(net(x.contiguous(memory_format=torch.channels_last)), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                now = time.perf_counter()
                times.append(now - last)
                last = now
        print(f"{len(times)} steps, loss {loss.item():.3f}")
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
