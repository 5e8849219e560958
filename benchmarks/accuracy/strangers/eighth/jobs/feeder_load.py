"""Day-ahead load forecast for distribution feeders; history sits in one long polars frame."""

import argparse, json, time
import numpy as np
import polars as pl
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

HIST, HORIZON = 168, 24
COLS = ["load_kw", "temp_c", "wind", "hour_sin", "hour_cos"]


def make_frame(n_feeders=60, hours=24 * 70):
    rng = np.random.default_rng(0)
    h = np.arange(hours)
    parts = []
    for f in range(n_feeders):
        base = 200 + 80 * rng.random()
        temp = 12 + 8 * np.sin(2 * np.pi * h / 24 + 1) + rng.normal(0, 1, hours)
        parts.append(
            pl.DataFrame(
                {
                    "feeder": np.full(hours, f),
                    "hour": h,
                    "load_kw": base + 60 * np.sin(2 * np.pi * h / 24) - 1.5 * temp + rng.normal(0, 4, hours),
                    "temp_c": temp,
                    "wind": rng.gamma(2.0, 2.0, hours),
                    "hour_sin": np.sin(2 * np.pi * h / 24),
                    "hour_cos": np.cos(2 * np.pi * h / 24),
                }
            )
        )
    df = pl.concat(parts)
    return df.with_columns([((pl.col(c) - pl.col(c).mean()) / pl.col(c).std()).alias(c) for c in COLS])


class FeederWindows(Dataset):
    def __init__(self, df):
        self.df = df
        self.feeders = df["feeder"].unique().sort().to_list()
        self.hours = int(df["hour"].max()) + 1
        self.per = self.hours - HIST - HORIZON

    def __len__(self):
        return len(self.feeders) * self.per

    def window(self, f, s):
        return (
            self.df.filter((pl.col("feeder") == f) & (pl.col("hour") >= s) & (pl.col("hour") < s + HIST + HORIZON))
            .select(COLS)
            .to_numpy()
            .astype(np.float32)
        )

    def __getitem__(self, i):
        f, s = divmod(i, self.per)
        w = torch.from_numpy(self.window(self.feeders[f], s))
        return w[:HIST], w[HIST:, 1:], w[HIST:, 0]


class ArrayWindows(FeederWindows):
    def __init__(self, df):
        super().__init__(df)
        self.cube = (
            df.sort("feeder", "hour")
            .select(COLS)
            .to_numpy()
            .astype(np.float32)
            .reshape(len(self.feeders), self.hours, -1)
        )

    def window(self, f, s):
        return self.cube[f, s : s + HIST + HORIZON]


class Forecaster(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.patch = nn.Conv1d(len(COLS), d, 6, stride=6)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.mix = nn.Sequential(nn.Linear(d + len(COLS) - 1, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, past, known):
        _, h = self.rnn(torch.relu(self.patch(past.transpose(1, 2))).transpose(1, 2))
        h = h[-1].unsqueeze(1).expand(-1, HORIZON, -1)
        return self.mix(torch.cat([h, known], -1)).squeeze(-1)


cli = argparse.ArgumentParser()
cli.add_argument("--seconds", type=float, default=12)
cli.add_argument("--better", action="store_true")
cli.add_argument("--times")
opts = cli.parse_args()

torch.manual_seed(11)
frame = make_frame()
ds = ArrayWindows(frame) if opts.better else FeederWindows(frame)
print(frame.shape, "rows;", len(ds), "windows")
loader = DataLoader(ds, batch_size=32, shuffle=True)
model = Forecaster()
optim = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

rec = []
t0 = time.perf_counter()
stop = False
while not stop:
    prev = time.perf_counter()
    for past, known, target in loader:
        loss = nn.functional.smooth_l1_loss(model(past, known), target)
        optim.zero_grad()
        loss.backward()
        optim.step()
        t = time.perf_counter()
        rec.append(t - prev)
        prev = t
        if len(rec) % 40 == 0:
            print(len(rec), "huber", round(loss.item(), 4))
        if t - t0 >= opts.seconds:
            stop = True
            break

if opts.times:
    json.dump(rec, open(opts.times, "w"))
