"""Counts fruit on aerial tiles, data parallel: torchrun --nproc-per-node 2 orchard_tiles.py"""

import os
import zlib

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stopwatch import Stopwatch

CURED = os.environ.get("CURED") == "1"
GPU = torch.cuda.is_available()
BATCH, SIDE, BATCHES = (64, 192, 6) if GPU else (8, 64, 6)
WIDTHS = (96, 160, 224, 288) if GPU else (8, 16, 16, 16)


def connect():
    rank = int(os.environ["RANK"])
    os.environ["NCCL_HOSTID"] = "host" + os.environ["RANK"]
    for name, value in {"SOCKET_IFNAME": "lo", "IB_DISABLE": "1", "P2P_DISABLE": "1", "SHM_DISABLE": "1"}.items():
        os.environ.setdefault("NCCL_" + name, value)
    if GPU:
        torch.cuda.set_device(0)
    dist.init_process_group(os.environ.get("BACKEND", "nccl" if GPU else "gloo"))
    return rank


class Tiles:
    """The tiles of a rank, compressed as they came; the decoded ones of the rank that keeps them."""

    def __init__(self, rank, keep, device):
        generator = np.random.default_rng(rank)
        self.keep = keep
        self.decoded = {}
        self.packed = []
        self.counts = torch.from_numpy(generator.random((BATCHES, BATCH), dtype=np.float32)).to(device)
        for _ in range(BATCHES):
            tiles = generator.integers(0, 40, (BATCH, 3 * SIDE * SIDE // 2), dtype=np.uint8).repeat(2, axis=1)
            self.packed.append([zlib.compress(tile.tobytes(), 1) for tile in tiles])

    def batch(self, number):
        number %= BATCHES
        if number in self.decoded:
            return self.decoded[number], self.counts[number]
        tiles = torch.empty(BATCH, 3, SIDE, SIDE, dtype=torch.uint8, pin_memory=GPU)
        for tile, packed in zip(tiles.numpy(), self.packed[number]):
            tile.reshape(-1)[:] = np.frombuffer(zlib.decompress(packed), dtype=np.uint8)
        if self.keep:
            self.decoded[number] = tiles
        return tiles, self.counts[number]


class Unit(nn.Module):
    def __init__(self, enter, leave, stride):
        super().__init__()
        self.a = nn.Conv2d(enter, leave, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(leave, leave, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(leave), nn.BatchNorm2d(leave)
        self.skip = nn.Conv2d(enter, leave, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm_a(self.a(x)), inplace=True)
        return F.relu(self.norm_b(self.b(y)) + self.skip(x), inplace=True)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTHS[0], 4, 2, 1)
        pairs = zip((WIDTHS[0], *WIDTHS[:-1]), WIDTHS, (1, 2, 2, 2))
        self.units = nn.Sequential(*[Unit(enter, leave, stride) for enter, leave, stride in pairs])
        self.head = nn.Linear(WIDTHS[-1], 1)

    def forward(self, x):
        return self.head(self.units(self.stem(x)).mean((2, 3))).squeeze(1)


def main():
    rank = connect()
    device = torch.device("cuda", 0) if GPU else torch.device("cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    tiles = Tiles(rank, keep=rank == 0 or CURED, device=device)
    model = Counter().to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(model, device_ids=[0] if GPU else None, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    total = torch.zeros((), device=device)
    step = 0
    clock = Stopwatch()
    while True:
        images, counts = tiles.batch(step)
        images = images.to(device, non_blocking=True)
        images = images.to(torch.float32, memory_format=torch.channels_last).div_(40)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=GPU):
            guess = model(images)
        loss = F.mse_loss(guess.float(), counts)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        step += 1
        if clock.tick():
            break
    if rank == 0:
        print(f"mean loss {total.item() / step:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
