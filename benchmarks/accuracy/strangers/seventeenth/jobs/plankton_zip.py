"""Plankton classifier on silhouettes kept in one zip archive (as downloaded from the survey)."""

import argparse
import io
import json
import os
import tempfile
import time
import zipfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ZippedImages(Dataset):
    def __init__(self, path, names, labels):
        self.path, self.names, self.labels = path, names, labels

    def __len__(self):
        return len(self.names)

    def read(self, name):
        with zipfile.ZipFile(self.path) as z:
            return z.read(name)

    def __getitem__(self, i):
        img = np.load(io.BytesIO(self.read(self.names[i])))
        x = torch.from_numpy(img).float().div_(255).sub_(0.5)
        if torch.rand(()) < 0.5:
            x = x.flip(1)
        return x[None], self.labels[i]


class OpenZippedImages(ZippedImages):
    handle = None

    def read(self, name):
        if self.handle is None:
            self.handle = zipfile.ZipFile(self.path)
        return self.handle.read(name)


def make_archive(folder, n, size, classes):
    rng = np.random.default_rng(0)
    path = os.path.join(folder, "survey.zip")
    names, labels = [], rng.integers(0, classes, n).tolist()
    with zipfile.ZipFile(path, "w") as z:
        for i in range(n):
            img = rng.integers(0, 255, (size, size), dtype=np.uint8)
            buf = io.BytesIO()
            np.save(buf, img)
            names.append(f"{labels[i]:02d}/{i:06d}.npy")
            z.writestr(names[-1], buf.getvalue())
    return path, names, labels


def network(classes):
    layers, c = [], 1
    for o in (32, 64, 96):
        layers += [nn.Conv2d(c, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
        c = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes))


def forever(loader):
    while True:
        yield from loader


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path, names, labels = make_archive(folder, 400, 40, 12)
        ds = (OpenZippedImages if a.better else ZippedImages)(path, names, labels)
        feed = forever(DataLoader(ds, batch_size=12, shuffle=True, drop_last=True))
        net = network(12)
        opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        times, end = [], time.perf_counter() + a.seconds
        while time.perf_counter() < end:
            t0 = time.perf_counter()
            x, y = next(feed)
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            times.append(time.perf_counter() - t0)
        print(f"{len(times)} batches, loss {loss.item():.3f}")
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
