"""Weld seam inspection: small CNN, photos decoded and augmented in a loader process."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Seams(Dataset):
    """Raw 8 bit line-scan patches on which crop, flip and gain are drawn per access."""

    def __init__(self, n=2400, size=72):
        rng = np.random.default_rng(0)
        self.y = rng.integers(0, 4, n)
        self.img = rng.integers(60, 200, (n, size, size), dtype=np.uint8)
        for k in range(n):
            r = int(rng.integers(20, 50))
            self.img[k, r : r + 2 + 2 * self.y[k], 10:60] = 20

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        a, b, flip = torch.randint(0, 8, (3,)).tolist()
        x = self.img[i, a : a + 64, b : b + 64]
        if flip % 2:
            x = x[:, ::-1]
        x = torch.from_numpy(x.astype(np.float32))
        return x.mul_(0.9 / 255 + flip * 0.0001).unsqueeze_(0), int(self.y[i])


def conv(a, b, s=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class SeamNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.body = nn.Sequential(
            conv(1, c, 2), conv(c, c), conv(c, 2 * c, 2), conv(2 * c, 2 * c), conv(2 * c, 4 * c, 2)
        )
        self.head = nn.Linear(4 * c, 4)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Confusion:
    def __init__(self, k):
        self.k = k
        self.m = torch.zeros(k, k, dtype=torch.long)

    def add(self, pred, y):
        self.m += torch.bincount(y * self.k + pred, minlength=self.k**2).view(self.k, self.k)

    def recall(self):
        return (self.m.diag() / self.m.sum(1).clamp_min(1)).tolist()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    a = p.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(
        Seams(), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True, prefetch_factor=4
    )
    net = SeamNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=20_000)
    lossf = nn.CrossEntropyLoss()
    cm = Confusion(4)
    walls = []
    go = True
    t0 = last = None
    while go:
        for x, y in loader:
            if t0 is None:
                t0 = last = time.perf_counter()
            logits = net(x)
            loss = lossf(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            cm.add(logits.detach().argmax(1), y)
            now = time.perf_counter()
            walls.append(now - last)
            last = now
            if len(walls) % 25 == 0:
                print(len(walls), round(loss.item(), 3), [round(r, 2) for r in cm.recall()])
            if now - t0 > a.seconds:
                go = False
                break
    if a.times:
        with open(a.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
