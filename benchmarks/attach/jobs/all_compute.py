"""Convolutions that keep the processor busy: nothing to mend from outside."""

import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.LazyLinear(10))
    x, y = torch.randn(16, 3, 40, 40), torch.randint(0, 10, (16,))
    model(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(int(sys.argv[1])):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


main()
