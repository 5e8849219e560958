"""Lesion segmentation: random crops which must show enough lesion, cut by loader workers."""

import argparse, json, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

CROP = 32


class Slices(Dataset):
    def __init__(self, n=160, size=224, seed=0, direct=False):
        rng = np.random.default_rng(seed)
        self.img = rng.standard_normal((n, size, size), dtype=np.float32)
        self.mask = np.zeros((n, size, size), np.uint8)
        self.size, self.direct = size, direct
        for i in range(n):
            small = i % 16 == 5  # few have only a tiny one in a corner
            r = 3 if small else int(rng.integers(24, 60))
            cy, cx = (4, 4) if small else rng.integers(60, size - 60, 2)
            yy, xx = np.ogrid[:size, :size]
            self.mask[i][(yy - cy) ** 2 + (xx - cx) ** 2 <= r * r] = 1

    def __len__(self):
        return len(self.img)

    def _cut(self, i, y, x):
        s = np.s_[y : y + CROP, x : x + CROP]
        return self.img[i][s], self.mask[i][s]

    def _search(self, i, rng, wanted=20):
        top = self.size - CROP
        while True:
            y, x = rng.integers(0, top + 1, 2)
            img, m = self._cut(i, y, x)
            img = (img - img.mean()) / (img.std() + 1e-5)
            if m.sum() >= wanted:
                return img, m

    def _around(self, i, rng):
        ys, xs = np.nonzero(self.mask[i])
        k = rng.integers(len(ys))
        top = self.size - CROP
        y = int(np.clip(ys[k] - rng.integers(8, CROP - 8), 0, top))
        x = int(np.clip(xs[k] - rng.integers(8, CROP - 8), 0, top))
        img, m = self._cut(i, y, x)
        return (img - img.mean()) / (img.std() + 1e-5), m

    def __getitem__(self, i):
        rng = np.random.default_rng()
        img, m = (self._around if self.direct else self._search)(i, rng)
        if rng.random() < 0.5:
            img, m = img[:, ::-1].copy(), m[:, ::-1].copy()
        return torch.from_numpy(img.copy())[None], torch.from_numpy(m.astype(np.int64))


class UNetish(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.d1 = nn.Sequential(nn.Conv2d(1, c, 3, 1, 1), nn.ReLU(), nn.Conv2d(c, c, 3, 1, 1), nn.ReLU())
        self.d2 = nn.Sequential(nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU(), nn.Conv2d(2 * c, 2 * c, 3, 1, 1), nn.ReLU())
        self.up, self.out = nn.ConvTranspose2d(2 * c, c, 2, 2), nn.Conv2d(2 * c, 2, 3, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        return self.out(torch.cat([a, self.up(self.d2(a))], 1))


def train(a):
    torch.set_num_threads(1)
    data = Slices(direct=a.better)
    sampler = RandomSampler(data, replacement=True, num_samples=10**6)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
    net = UNetish()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    it = iter(loader)
    next(it)
    t = [time.perf_counter()]
    for n, (x, m) in enumerate(it):
        logits = net(x)
        loss = (
            F.cross_entropy(logits, m)
            + 1
            - 2 * (logits.softmax(1)[:, 1] * m).sum() / (m.sum() + 1.0 + logits.softmax(1)[:, 1].sum())
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
        t.append(time.perf_counter())
        if n % 50 == 0:
            print("iter", n, "loss %.3f" % loss.item())
        if t[-1] - t[0] > a.seconds and n >= 24:
            break
    return [q - p for p, q in zip(t, t[1:])]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    a = ap.parse_args()
    d = train(a)
    if a.times:
        json.dump(d, open(a.times, "w"))
