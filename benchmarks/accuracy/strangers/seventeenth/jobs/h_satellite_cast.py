"""Land-use classifier on uint8 band stacks: cast, scale, flip and reorder in the step, metrics kept in Python."""

import argparse
import collections
import json
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


class Patches:
    def __init__(self, n=1200, bands=10, size=16, classes=9):
        rng = np.random.default_rng(2)
        self.pixels = rng.integers(0, 256, (n, size, size, bands), dtype=np.uint8)
        self.label = rng.integers(0, classes, n)

    def batch(self, rows):
        x = torch.from_numpy(self.pixels[rows]).permute(0, 3, 1, 2).contiguous()
        x = x.to(torch.float32).div_(255.0)
        if np.random.rand() < 0.5:
            x = torch.flip(x, (3,))
        return (x - 0.5) / 0.29, torch.as_tensor(self.label[rows])


def model(bands, size, classes, width=1024):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(bands * size * size, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    data = Patches()
    net = model(10, 16, 9)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    meter = collections.defaultdict(float)
    per_class = collections.Counter()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < a.seconds:
        t0 = time.perf_counter()
        x, y = data.batch(np.random.randint(0, 1200, 768))
        out = net(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
        meter["loss"] += loss.item()
        meter["seen"] += len(y)
        hits = (out.argmax(1) == y).tolist()
        meter["hits"] += sum(hits)
        for label, hit in zip(y.tolist(), hits):
            per_class[label, hit] += 1
        times.append(time.perf_counter() - t0)
        if len(times) % 20 == 0:
            print(
                f"{len(times)}: loss {meter['loss'] / len(times):.3f} acc {meter['hits'] / meter['seen']:.3f} "
                f"class0 {per_class[0, True]}/{per_class[0, True] + per_class[0, False]}"
            )
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
