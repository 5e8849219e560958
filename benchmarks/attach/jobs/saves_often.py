"""A checkpoint after every step."""

import os
import sys
import tempfile

import torch
from torch import nn


def checkpoint(model, optimizer, folder, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{folder}/last.pt")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Linear(700, 700) for _ in range(8)])
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(4, 700)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TILES", "/var/tmp")) as folder:
        for step in range(int(sys.argv[1])):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            checkpoint(model, optimizer, folder, step)
            if step % 10 == 0:
                print(step, loss.item(), flush=True)


main()
