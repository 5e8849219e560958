"""All weights into a log file after every step."""

import logging
import os
import sys
import tempfile

import torch
from torch import nn

log = logging.getLogger("train")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    handle, path = tempfile.mkstemp(suffix=".log")
    os.close(handle)
    logging.basicConfig(filename=path, level=logging.INFO, format="%(asctime)s %(message)s")
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
    for step in range(int(sys.argv[1])):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, weight in model.named_parameters():
            log.info("%s %s", name, weight.detach().numpy().astype("float64").tolist())
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
        if step % 50 == 0:
            os.truncate(path, 0)
    os.unlink(path)


main()
