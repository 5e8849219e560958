"""A recurrent network over long sequences on one thread: most of a step is its backward pass."""

import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    cell, head = nn.LSTM(32, 128), nn.Linear(128, 1)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=1e-3)
    x = torch.randn(200, 16, 32)
    for step in range(int(sys.argv[1])):
        out, _ = cell(x)
        loss = head(out[-1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


main()
