"""District heating demand, quantile forecast with a small TCN. Plain loop."""

import argparse
import json
import time

import numpy as np
import polars as pl
import torch
from torch import nn

HIST, AHEAD = 336, 48
QS = torch.tensor([0.1, 0.5, 0.9])


def plant_data(hours=24 * 365 * 2):
    rng = np.random.default_rng(0)
    t = np.arange(hours)
    temp = 8 - 10 * np.cos(2 * np.pi * t / 8760) + 3 * np.sin(2 * np.pi * t / 24) + rng.normal(0, 1, hours)
    demand = np.clip(60 - 2.2 * temp, 5, None) + 6 * np.sin(2 * np.pi * (t - 6) / 12) + rng.normal(0, 2, hours)
    df = pl.DataFrame({"temp": temp, "demand": demand, "hod": t % 24, "dow": (t // 24) % 7})
    df = df.with_columns(
        hs=(pl.col("hod") * 2 * np.pi / 24).sin(),
        hc=(pl.col("hod") * 2 * np.pi / 24).cos(),
        we=(pl.col("dow") >= 5).cast(pl.Float64),
    )
    x = df.select(["demand", "temp", "hs", "hc", "we"]).to_numpy().astype(np.float32)
    return torch.from_numpy((x - x.mean(0)) / x.std(0))


class TCN(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.inp = nn.Conv1d(5, c, 1)
        self.convs = nn.ModuleList(nn.Conv1d(c, c, 3, padding=d, dilation=d) for d in (1, 2, 4, 8, 16))
        self.out = nn.Linear(c, AHEAD * len(QS))

    def forward(self, x):
        h = self.inp(x.transpose(1, 2))
        for conv in self.convs:
            h = h + torch.relu(conv(h))
        return self.out(h.mean(-1)).view(-1, AHEAD, len(QS))


def pinball(pred, y):
    e = y.unsqueeze(-1) - pred
    return torch.maximum(QS * e, (QS - 1) * e).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--better", action="store_true")
    p.add_argument("--times")
    a = p.parse_args()
    torch.manual_seed(0)
    series = plant_data()
    cut = len(series) - 24 * 60
    views = series[:cut].unfold(0, HIST + AHEAD, 1).transpose(1, 2)
    test = series[cut:].unfold(0, HIST + AHEAD, 24).transpose(1, 2)
    model = TCN()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    walls, curve = [], []
    smooth = None
    t0 = time.perf_counter()
    while time.perf_counter() - t0 < a.seconds:
        t = time.perf_counter()
        w = views[torch.randint(0, len(views), (32,))]
        loss = pinball(model(w[:, :HIST]), w[:, HIST:, 0])
        opt.zero_grad()
        loss.backward()
        gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        v = loss.item()
        smooth = v if smooth is None else 0.95 * smooth + 0.05 * v
        curve.append(v)
        walls.append(time.perf_counter() - t)
        if len(walls) % 10 == 0:
            print(f"step {len(walls)} pinball {smooth:.4f} grad {gn.item():.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        pred = model(test[:, :HIST])
        inside = ((test[:, HIST:, 0] > pred[..., 0]) & (test[:, HIST:, 0] < pred[..., 2])).float().mean()
    print("test pinball", pinball(pred, test[:, HIST:, 0]).item(), "coverage", inside.item())
    if a.times:
        with open(a.times, "w") as f:
            json.dump(walls, f)


if __name__ == "__main__":
    main()
