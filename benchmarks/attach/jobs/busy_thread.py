"""A monitor's thread that computes statistics in Python beside the loop, which is in Python as well."""

import sys
import threading

import torch
from torch import nn

ended = threading.Event()


def monitor():
    total = 0
    while not ended.is_set():
        for number in range(100_000):
            total = (total * 7 + number) % 1_000_003


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    threading.Thread(target=monitor, daemon=True).start()
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(30)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    x = torch.randn(4, 16)
    for step in range(int(sys.argv[1])):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
    ended.set()


main()
