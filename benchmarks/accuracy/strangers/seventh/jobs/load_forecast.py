# Day-ahead electricity load forecast from the last week (hourly), notebook export
import argparse, json, time
import numpy as np
import torch
import torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--seconds", type=float, default=12)
p.add_argument("--better", action="store_true")
p.add_argument("--times", type=str, default="")
args = p.parse_args()

np.random.seed(7)
torch.manual_seed(7)

# --- data -----------------------------------------------------------------
hours = np.arange(24 * 365 * 2)
daily = np.sin(2 * np.pi * hours / 24)
weekly = np.sin(2 * np.pi * hours / (24 * 7))
yearly = np.cos(2 * np.pi * hours / (24 * 365))
temp = 10 - 12 * yearly + 4 * daily + np.random.randn(len(hours)) * 2
load = 50 + 8 * daily + 5 * weekly - 0.6 * temp + np.random.randn(len(hours)) * 1.5

series = np.stack([load, temp, daily, weekly, yearly], axis=1)
train_part = series[: int(len(series) * 0.8)]
mu, sd = train_part.mean(axis=0), train_part.std(axis=0)
series = (series - mu) / sd

HISTORY, HORIZON, BATCH = 168, 24, 48
if args.better:
    series = series.astype(np.float32)
data = torch.from_numpy(series)
windows = data.unfold(0, HISTORY + HORIZON, 1)  # n, features, time
n_train = int(len(windows) * 0.8)


# --- model ----------------------------------------------------------------
class Forecaster(nn.Module):
    def __init__(self, features, width=256):
        super().__init__()
        self.embed = nn.Linear(features * 24, width)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
                for _ in range(3)
            ]
        )
        self.out = nn.Linear(width * (HISTORY // 24), HORIZON)

    def forward(self, x):
        b, f, t = x.shape
        days = x.reshape(b, f, t // 24, 24).transpose(1, 2).flatten(2)
        h = self.embed(days)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h.flatten(1))


model = Forecaster(data.shape[1]).to(data.dtype)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=2000)
loss_fn = nn.HuberLoss()

# --- training -------------------------------------------------------------
times = []
t_start = t_last = time.perf_counter()
while t_last - t_start < args.seconds:
    idx = torch.randint(0, n_train, (BATCH,))
    w = windows[idx]
    pred = model(w[:, :, :HISTORY])
    loss = loss_fn(pred, w[:, 0, HISTORY:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if len(times) % 100 == 0:
        print(f"it {len(times):5d}  huber {loss.item():.4f}  lr {sched.get_last_lr()[0]:.2e}")
    t_now = time.perf_counter()
    times.append(t_now - t_last)
    t_last = t_now

with torch.no_grad():
    w = windows[n_train : n_train + 256]
    mae = (model(w[:, :, :HISTORY]) - w[:, 0, HISTORY:]).abs().mean() * sd[0]
    print("MAE [MW]", round(mae.item(), 3))

if args.times:
    with open(args.times, "w") as f:
        json.dump(times, f)
