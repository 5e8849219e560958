"""Soil survey: one trunk, eleven small heads with missing labels, each loss weighed and logged separately."""

import argparse
import csv
import io
import json
import math
import time

import torch
from torch import nn

TARGETS = ["ph", "clay", "sand", "silt", "carbon", "nitrogen", "cec", "iron", "zinc", "salinity", "moisture"]


class Soil(nn.Module):
    def __init__(self, bands=1024, width=1024):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(bands, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.heads = nn.ModuleDict({t: nn.Linear(width, 1) for t in TARGETS})

    def forward(self, x):
        z = self.trunk(x)
        return {t: head(z).squeeze(-1) for t, head in self.heads.items()}


class Report:
    def __init__(self):
        self.buffer = io.StringIO()
        self.writer = csv.DictWriter(self.buffer, ["step", *TARGETS])
        self.writer.writeheader()
        self.smooth = dict.fromkeys(TARGETS, math.nan)

    def add(self, step, losses):
        for name, value in losses.items():
            v = value.item()
            old = self.smooth[name]
            self.smooth[name] = v if math.isnan(old) else 0.95 * old + 0.05 * v
        self.writer.writerow({"step": step, **{k: round(v, 5) for k, v in self.smooth.items()}})


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--times")
    p.add_argument("--better", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    spectra = torch.randn(3000, 1024)
    truth = torch.randn(3000, len(TARGETS))
    truth[torch.rand_like(truth) < 0.3] = math.nan
    net, report = Soil(), Report()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=5000)
    times, stop = [], time.perf_counter() + a.seconds
    while time.perf_counter() < stop:
        t0 = time.perf_counter()
        rows = torch.randint(0, 3000, (896,))
        out = net(spectra[rows])
        losses = {}
        for i, t in enumerate(TARGETS):
            y = truth[rows, i]
            ok = ~torch.isnan(y)
            losses[t] = nn.functional.mse_loss(out[t][ok], y[ok])
        opt.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        opt.step()
        schedule.step()
        report.add(len(times), losses)
        times.append(time.perf_counter() - t0)
        if len(times) % 30 == 0:
            print(len(times), {k: round(v, 3) for k, v in list(report.smooth.items())[:4]})
    if a.times:
        json.dump(times, open(a.times, "w"))


if __name__ == "__main__":
    main()
