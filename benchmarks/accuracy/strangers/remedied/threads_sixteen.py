"""Flow matching on points; threads as on the workstation it was written on."""

import argparse
import json
import time

import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, width=256, depth=6):
        super().__init__()
        self.inp = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        h = self.inp(torch.cat([x, t], 1))
        for layer in self.layers:
            h = h + nn.functional.silu(layer(h))
        return self.out(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--better", action="store_true")
    parser.add_argument("--seconds", type=float, default=14)
    parser.add_argument("--times")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = Field()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    times, start = [], time.perf_counter()
    last, step = start, 0
    while last - start < args.seconds:
        angle = torch.rand(2048, 1) * 6.283
        data = torch.cat([angle.cos(), angle.sin()], 1) * (1 + torch.randint(0, 2, (2048, 1)))
        noise, t = torch.randn(2048, 2), torch.rand(2048, 1)
        loss = (model(t * data + (1 - t) * noise, t) - (data - noise)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        now = time.perf_counter()
        times.append(now - last)
        last = now
    print("steps", step, "loss", loss.item())
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
