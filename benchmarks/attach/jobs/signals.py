"""Signals that workers (or none) cut and smooth in Python, for a model that is done sooner."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        value, row = index % 97, []
        for _ in range(12_000):
            value = (value * 31 + 7) % 1009
            row.append(value)
        return torch.tensor(row[-256:], dtype=torch.float32) / 1009, index % 2


if __name__ == "__main__":
    steps = int(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in zip(range(steps), DataLoader(Signals(), batch_size=16, num_workers=int(sys.argv[2]))):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
