"""A small GAN, data parallel. Both networks are wrapped in DDP."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stopwatch import report

NOISE, PIXELS = 118, 27 * 27
CURED = os.environ.get("CURED") == "1"


def generator():
    return nn.Sequential(
        nn.Linear(NOISE, 410),
        nn.LeakyReLU(0.2),
        nn.Linear(410, 690),
        nn.LeakyReLU(0.2),
        nn.Linear(690, PIXELS),
        nn.Tanh(),
    )


def critic():
    return nn.Sequential(
        nn.Linear(PIXELS, 2900), nn.LeakyReLU(0.2), nn.Linear(2900, 2350), nn.LeakyReLU(0.2), nn.Linear(2350, 1)
    )


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(11 + dist.get_rank())
    G, D = DDP(generator()), DDP(critic())
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.99))
    opt_d = torch.optim.SGD(D.parameters(), lr=1e-3)
    bce = nn.BCEWithLogitsLoss()
    batch = 18
    times = []
    for it in range(56):
        t0 = time.perf_counter()
        real = torch.rand(batch, PIXELS) * 2 - 1
        # critic
        with torch.no_grad():
            fake = G(torch.randn(batch, NOISE))
        opt_d.zero_grad()
        scores = D(torch.cat([real, fake]))
        target = torch.cat([torch.ones(batch, 1), torch.zeros(batch, 1)])
        bce(scores, target).backward()
        opt_d.step()
        # generator
        opt_g.zero_grad()
        judged = D.module if CURED else D
        scores = judged(G(torch.randn(batch, NOISE)))
        loss = bce(scores, torch.ones(batch, 1))
        loss.backward()
        opt_g.step()
        times.append(time.perf_counter() - t0)
    report(times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
