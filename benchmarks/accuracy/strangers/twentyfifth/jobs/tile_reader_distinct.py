"""Segmentation of tiles; every rank reads its own shard from an object store."""

import io
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from stopwatch import report


class Store:
    """A bucket: `latency` is that of one request (the shard of rank 1 lies in another region)."""

    def __init__(self, latency):
        self.latency = latency
        self.blob = np.random.default_rng(0).integers(0, 255, 3 * 46 * 46, dtype=np.uint8).tobytes()

    def get(self, key):
        if self.latency:
            time.sleep(self.latency)
        return io.BytesIO(
            np.random.default_rng(hash(key) % 99991).integers(0, 255, 3 * 46 * 46, dtype=np.uint8).tobytes()
        )


class Tiles(Dataset):
    def __init__(self, store, n=4000):
        self.store, self.n = store, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        raw = np.frombuffer(self.store.get(f"tile-{i}").read(), np.uint8).reshape(3, 46, 46)
        return torch.from_numpy(raw.astype(np.float32) / 255), i % 7


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    far = rank == 1 and os.environ.get("CURED") != "1"
    loader = DataLoader(Tiles(Store(0.0105 if far else 0.0)), batch_size=13, num_workers=1, shuffle=True)
    net = DDP(
        nn.Sequential(
            nn.Conv2d(3, 38, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(38, 38, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(38, 57, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(57, 7),
        )
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    times = []
    t = time.perf_counter()
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad(set_to_none=True)
        loss_fn(net(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - t)
        t = time.perf_counter()
        if step == 61:
            break
    report(times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
