"""Action recognition on short synthetic clips; a background thread prepares the next batches."""

import argparse
import collections
import json
import threading
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_clip(rng, frames=8, size=28):
    label = int(rng.integers(0, 8))
    ang = label * np.pi / 4
    y, x = np.mgrid[0:size, 0:size]
    out = np.empty((frames, size, size), np.float32)
    cx, cy = rng.uniform(8, 20, 2)
    for f in range(frames):
        out[f] = np.exp(-((x - cx - f * np.cos(ang)) ** 2 + (y - cy - f * np.sin(ang)) ** 2) / 12)
    return out + rng.normal(0, 0.1, out.shape).astype(np.float32), label


class Prefetcher:
    def __init__(self, clips, batch, depth=4, better=False):
        self.clips, self.batch, self.depth = clips, batch, depth
        self.ready = collections.deque()
        self.cond = threading.Condition()
        self.rng = np.random.default_rng(1)
        self.alive = True
        self.thread = threading.Thread(target=self.fill_waiting if better else self.fill, daemon=True)
        self.thread.start()

    def make(self):
        pick = self.rng.integers(0, len(self.clips), self.batch)
        x = torch.from_numpy(np.stack([self.clips[i][0] for i in pick]))[:, None]
        return x, torch.tensor([self.clips[i][1] for i in pick])

    def fill(self):
        while self.alive:
            if len(self.ready) < self.depth:
                self.ready.append(self.make())

    def fill_waiting(self):
        while self.alive:
            item = self.make()
            with self.cond:
                self.cond.wait_for(lambda: len(self.ready) < self.depth or not self.alive)
                self.ready.append(item)

    def get(self):
        while not self.ready:
            time.sleep(0.0005)
        with self.cond:
            item = self.ready.popleft()
            self.cond.notify()
        return item

    def close(self):
        self.alive = False
        with self.cond:
            self.cond.notify()
        self.thread.join()


class C3D(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv3d(1, 8, 3, padding=1), nn.Conv3d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16, 8)

    def forward(self, x):
        x = F.max_pool3d(F.relu(self.c1(x)), (1, 2, 2))
        x = F.max_pool3d(F.relu(self.c2(x)), 2)
        return self.fc(x.mean((2, 3, 4)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    feed = Prefetcher([make_clip(rng) for _ in range(300)], 8, better=args.better)
    net = C3D()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    times, t_begin = [], time.perf_counter()
    while time.perf_counter() - t_begin < args.seconds:
        t0 = time.perf_counter()
        x, y = feed.get()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 50 == 0:
            print(len(times), f"{loss.item():.3f}")
    feed.close()
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
