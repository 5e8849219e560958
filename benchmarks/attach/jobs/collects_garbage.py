"""A replay memory of many small objects, and a collection after every step against its growth."""

import gc
import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    memory = [{"state": [float(i), i / 2], "reward": i % 3, "next": [i]} for i in range(150_000)]
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(int(sys.argv[1])):
        picked = memory[step % 1000 :: 5000]
        x = torch.tensor([one["state"] for one in picked])
        y = torch.tensor([[float(one["reward"])] for one in picked])
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gc.collect()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


main()
