import argparse, json, time
import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=12.0)
parser.add_argument("--better", action="store_true")
parser.add_argument("--times", default=None)
args = parser.parse_args()

np.random.seed(0)
torch.manual_seed(0)

LOOKBACK = 128
HORIZON = 16


def load_sales(n_stores=40, days=1500):
    t = np.arange(days)
    base = np.random.uniform(20, 80, (n_stores, 1))
    weekly = np.sin(2 * np.pi * t / 7)[None] * np.random.uniform(1, 6, (n_stores, 1))
    yearly = np.cos(2 * np.pi * t / 365)[None] * np.random.uniform(2, 9, (n_stores, 1))
    promo = (np.random.rand(n_stores, days) < 0.05) * 12.0
    sales = base + weekly + yearly + promo + np.random.randn(n_stores, days)
    sales = (sales - sales.mean(1, keepdims=True)) / sales.std(1, keepdims=True)
    return np.stack([sales, promo / 12.0], 1)


def windows(arr, stride=11):
    v = np.lib.stride_tricks.sliding_window_view(arr, LOOKBACK + HORIZON, axis=2)[:, :, ::stride]
    v = v.transpose(0, 2, 1, 3).reshape(-1, arr.shape[1], LOOKBACK + HORIZON)
    return v[:, :, :LOOKBACK].copy(), v[:, 0, LOOKBACK:].copy()


dtype = np.float32 if args.better else np.float64
X, Y = windows(load_sales())
X = torch.from_numpy(X.astype(dtype))
Y = torch.from_numpy(Y.astype(dtype))
print("windows", tuple(X.shape), tuple(Y.shape))


class TCNBlock(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(c, c, 3, dilation=dilation)
        self.mix = nn.Conv1d(c, c, 1)

    def forward(self, x):
        return x + self.mix(torch.relu(self.conv(self.pad(x))))


class TCN(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.inp = nn.Conv1d(2, c, 1)
        self.blocks = nn.Sequential(*[TCNBlock(c, 2**k) for k in range(5)])
        self.head = nn.Linear(c, HORIZON)

    def forward(self, x):
        return self.head(self.blocks(self.inp(x))[:, :, -1])


model = TCN().to(X.dtype)
opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
lossf = nn.L1Loss()

times = []
t_start = time.perf_counter()
n = 0
while True:
    t = time.perf_counter()
    idx = torch.randint(0, len(X), (32,))
    pred = model(X[idx])
    loss = lossf(pred, Y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    times.append(time.perf_counter() - t)
    n += 1
    if n % 50 == 0:
        print(n, "mae", loss.item())
    if time.perf_counter() - t_start > args.seconds:
        break

if args.times:
    json.dump(times, open(args.times, "w"))
