"""Few-shot fine-tuning: tiny epochs over a support set, workers for reading."""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Support(Dataset):
    def __init__(self, shots=100):
        self.x = np.random.default_rng(0).normal(size=(shots, 3, 48, 48)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = torch.from_numpy(self.x[i])
        return (x - x.mean()) / x.std(), i % 10


def open_index(worker):
    """Each worker reads the lookup of class names and boxes for itself."""
    rng = np.random.default_rng(worker)
    return {f"class-{i}": rng.integers(0, 48, 4).tolist() for i in range(25000)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(48, 48, 3, padding=1) for _ in range(4))
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        x = self.stem(x).relu()
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Support(), batch_size=20, shuffle=True, num_workers=2, worker_init_fn=open_index, persistent_workers=True
    )
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    times, start = [], time.perf_counter()
    last = start
    for epoch in range(100000):
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(now - last)
            last = now
        if epoch % 10 == 0:
            print(epoch, loss.item())
        if now - start > args.seconds:
            break
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
