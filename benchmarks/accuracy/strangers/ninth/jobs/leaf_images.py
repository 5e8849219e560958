"""Leaf disease classifier. Small augmentation pipeline in the loader workers."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Leaves(Dataset):
    def __init__(self, n=192, size=48, classes=6, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, classes, n)
        proto = rng.integers(0, 200, (classes, size, size, 3))
        noise = rng.integers(0, 55, (n, size, size, 3))
        self.images = (proto[self.labels] + noise).astype(np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        im = self.images[i]
        if np.random.rand() < 0.5:
            im = im[:, ::-1]
        dy, dx = np.random.randint(0, 9, 2)
        im = np.pad(im, ((4, 4), (4, 4), (0, 0)), mode="edge")[dy : dy + 48, dx : dx + 48]
        im = im.astype(np.float32) / 255.0
        im = (im - 0.5) / 0.25
        return torch.from_numpy(np.ascontiguousarray(im.transpose(2, 0, 1))), int(self.labels[i])


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


def get_model():
    return nn.Sequential(
        conv(3, 16),
        nn.MaxPool2d(2),
        conv(16, 32),
        nn.MaxPool2d(2),
        conv(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 6),
    )


def get_loader(args):
    common = dict(batch_size=args.bs, shuffle=True, drop_last=True, num_workers=2)
    if args.better:
        return DataLoader(Leaves(), persistent_workers=True, **common)
    return DataLoader(Leaves(), **common)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--bs", type=int, default=16)
    args = ap.parse_args()
    torch.manual_seed(5)
    np.random.seed(5)
    loader = get_loader(args)
    model = get_model()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    ce = nn.CrossEntropyLoss()
    times = []
    first = last = time.perf_counter()
    epoch = 0
    while last - first < args.seconds:
        correct = seen = 0
        for x, y in loader:
            out = model(x)
            loss = ce(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (out.argmax(1) == y).sum().item()
            seen += len(y)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if last - first >= args.seconds:
                break
        epoch += 1
        print(f"epoch {epoch} acc {correct / seen:.3f}")
    if args.times:
        with open(args.times, "w") as fh:
            json.dump(times, fh)


if __name__ == "__main__":
    main()
