"""Nightly batch: embed product thumbnails with a small ResNet and keep the vectors in one array."""

import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

DEFAULTS = {
    "image_size": 80,
    "batch_size": 16,
    "embed_dim": 128,
    "width": 40,
    "cpu_threads": 1,
}


class Basic(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.a = nn.Conv2d(i, o, 3, stride, 1)
        self.b = nn.Conv2d(o, o, 3, 1, 1)
        self.skip = nn.Conv2d(i, o, 1, stride) if stride > 1 or i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.b(F.relu(self.a(x))) + self.skip(x))


class Embedder(nn.Module):
    """Batch norms are already folded into the convolutions."""

    def __init__(self, width, dim):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 5, 2, 2)
        self.stages = nn.Sequential(
            Basic(width, width, 1),
            Basic(width, 2 * width, 2),
            Basic(2 * width, 2 * width, 1),
            Basic(2 * width, 4 * width, 2),
        )
        self.out = nn.Linear(4 * width, dim)

    def forward(self, x):
        h = self.stages(F.relu(self.stem(x)))
        return F.normalize(self.out(h.mean((2, 3))), dim=1)


class ThumbnailStore:
    def __init__(self, size, n=512):
        rng = np.random.default_rng(0)
        self.data = rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8)

    def batches(self, k):
        at = 0
        while True:
            yield self.data[at : at + k]
            at = (at + k) % (len(self.data) - k)


class Job:
    def __init__(self, conf):
        torch.set_num_threads(conf["cpu_threads"])
        self.conf = conf
        self.model = Embedder(conf["width"], conf["embed_dim"]).eval().to(memory_format=torch.channels_last)
        self.store = ThumbnailStore(conf["image_size"])
        self.out = np.zeros((200_000, conf["embed_dim"]), np.float16)
        self.rows = 0

    @torch.inference_mode()
    def embed(self, raw):
        x = torch.from_numpy(raw).permute(0, 3, 1, 2).float().mul_(1 / 127.5).sub_(1)
        return self.model(x)

    def run(self, seconds):
        times = []
        begin = last = time.perf_counter()
        for raw in self.store.batches(self.conf["batch_size"]):
            vec = self.embed(raw).numpy()
            at = self.rows % (len(self.out) - len(vec))
            self.out[at : at + len(vec)] = vec
            self.rows += len(vec)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if len(times) % 50 == 0:
                print(f"{self.rows} thumbnails, {self.rows / (now - begin):.0f} per s")
            if now - begin > seconds:
                return times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=12)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    conf = dict(DEFAULTS)
    if args.better:
        conf["cpu_threads"] = 2
    torch.manual_seed(0)
    times = Job(conf).run(args.seconds)
    if args.times:
        json.dump(times, open(args.times, "w"))
