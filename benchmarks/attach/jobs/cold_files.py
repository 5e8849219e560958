"""Tiles that are read past the page cache, as from a data set that is larger than memory."""

import mmap
import os
import sys
import tempfile

import torch
from torch import nn

TILE = 4 << 20


def write(path):
    block = bytes(range(256)) * (TILE // 256)
    with open(path, "wb") as file:
        for _ in range(48):
            file.write(block)
        os.fsync(file.fileno())


def read(handle, number, buffer):
    for part in range(0, TILE, 16 << 10):
        os.preadv(handle, [memoryview(buffer)[part : part + (16 << 10)]], number * TILE + part)
    return torch.frombuffer(buffer, dtype=torch.uint8)[:4096].float() / 255


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    folder = tempfile.TemporaryDirectory(dir=os.environ.get("TILES", "/var/tmp"))
    path = os.path.join(folder.name, "tiles")
    write(path)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, TILE)
    model = nn.Linear(4096, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(int(sys.argv[1])):
        x = read(handle, step % 48, buffer)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


main()
