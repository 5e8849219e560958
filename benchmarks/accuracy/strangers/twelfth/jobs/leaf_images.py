"""Leaf disease classifier on a folder of photographs."""

import argparse
import os
import random
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset

CLASSES = ["healthy", "rust", "scab", "mildew"]
SIZE = 80


def write_photos(folder, count):
    rng = np.random.default_rng(0)
    for i in range(count):
        label = i % len(CLASSES)
        coarse = rng.integers(0, 255, (12 + 4 * label, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((480, 360)).save(
            os.path.join(folder, f"{CLASSES[label]}_{i:04d}.jpg"), quality=88
        )


class LeafFolder(Dataset):
    def __init__(self, folder, train=True, keep=False):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder))
        self.labels = [CLASSES.index(os.path.basename(f).split("_")[0]) for f in self.files]
        self.train = train
        self.arrays = [self.load(f) for f in self.files] if keep else None

    def load(self, path):
        with Image.open(path) as im:
            im = im.convert("RGB").resize((SIZE, SIZE), Image.BICUBIC)
        return np.array(im)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        if self.arrays is not None:
            a = self.arrays[i]
        else:
            a = self.load(self.files[i])
        x = torch.from_numpy(a).permute(2, 0, 1).float().div_(255)
        if self.train and random.random() < 0.5:
            x = x.flip(-1)
        return (x - 0.5) / 0.25, self.labels[i]


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    )


def build_model():
    return nn.Sequential(
        conv_block(3, 24),
        conv_block(24, 48),
        conv_block(48, 96),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, len(CLASSES)),
    )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    args = p.parse_args()
    torch.manual_seed(0)
    random.seed(0)

    with tempfile.TemporaryDirectory() as folder:
        write_photos(folder, 160)
        data = LeafFolder(folder, keep=args.better)
        loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
        model = build_model()
        opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        times, epoch = [], 0
        start = last = time.perf_counter()
        while last - start < args.seconds:
            total = 0.0
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                total += loss.item()
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if now - start >= args.seconds:
                    break
            epoch += 1
            print(f"epoch {epoch} loss {total / len(loader):.3f}")
    if args.times:
        with open(args.times, "w") as f:
            f.writelines(f"{t}\n" for t in times)


if __name__ == "__main__":
    main()
