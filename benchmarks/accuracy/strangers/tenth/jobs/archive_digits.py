"""Train a small CNN on an .npz archive of digit-like images."""

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


def write_archive(path, n=1500):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, n)
    images = rng.integers(0, 60, (n, 1, 28, 28), dtype=np.uint8)
    for i, c in enumerate(labels):
        images[i, 0, 2 + 2 * c : 4 + 2 * c, 6:22] += 150
    np.savez(path, images=images, labels=labels)


class Archive(Dataset):
    def __init__(self, path, train=True, preload=False):
        self.data = np.load(path)
        if preload:
            self.data = {k: self.data[k] for k in self.data.files}
        self.labels = self.data["labels"]
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = self.data["images"][i].astype(np.float32) / 255.0
        if self.train:
            dx, dy = np.random.randint(-2, 3, 2)
            img = np.roll(img, (dx, dy), (1, 2))
        return (img - 0.13) / 0.31, int(self.labels[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--times")
    parser.add_argument("--seconds", type=float, default=15)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "digits.npz")
        write_archive(path)
        loader = DataLoader(Archive(path, preload=args.better), args.batch_size, shuffle=True, drop_last=True)
        model = Net()
        optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
        times = []
        start = last = time.perf_counter()
        for epoch in range(30):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                now = time.perf_counter()
                times.append(now - last)
                last = now
                if now - start > args.seconds:
                    break
            print(f"epoch {epoch} loss {loss.item():.4f}")
            if last - start > args.seconds:
                break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
