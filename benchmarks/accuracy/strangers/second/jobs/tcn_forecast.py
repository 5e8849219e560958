"""Load forecasting: temporal mixer over 96 h of 64 series, hand-made normalisation and activation."""

import argparse, json, math, time
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--seconds", type=float, default=6)
ap.add_argument("--times")
ap.add_argument("--better", action="store_true")
args = ap.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)


class SmoothGate(nn.Module):
    """gelu, tanh form, as in the paper's appendix"""

    def forward(self, x):
        if args.better:
            return F.gelu(x, approximate="tanh")
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class SeriesNorm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.g, self.b, self.eps, self.n = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n)), eps, n

    def forward(self, x):
        if args.better:
            return F.layer_norm(x, (self.n,), self.g, self.b, self.eps)
        mu = x.mean(-1, keepdim=True)
        var = ((x - mu) ** 2).mean(-1, keepdim=True)
        return self.g * ((x - mu) / torch.sqrt(var + self.eps)) + self.b


class MixerBlock(nn.Module):
    def __init__(self, d, t):
        super().__init__()
        self.n1, self.n2 = SeriesNorm(d), SeriesNorm(d)
        self.feat = nn.Sequential(nn.Linear(d, 2 * d), SmoothGate(), nn.Linear(2 * d, d))
        self.time = nn.Linear(t, t)
        self.gate = SmoothGate()

    def forward(self, x):
        x = x + self.gate(self.time(self.n1(x).transpose(1, 2))).transpose(1, 2)
        return x + self.feat(self.n2(x))


class Forecaster(nn.Module):
    def __init__(self, series=64, t=96, horizon=24, depth=3):
        super().__init__()
        self.blocks = nn.Sequential(*[MixerBlock(series, t) for _ in range(depth)])
        self.norm = SeriesNorm(series)
        self.out = nn.Linear(t, horizon)

    def forward(self, x):
        return self.out(self.norm(self.blocks(x)).transpose(1, 2)).transpose(1, 2)


hours = torch.arange(6000.0)
load = torch.sin(2 * math.pi * hours[:, None] / 24 + torch.rand(64) * 6) + 0.1 * torch.randn(6000, 64)
windows = load.unfold(0, 120, 1)  # N, series, 120
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)

clock, losses = [time.perf_counter()], []
while clock[-1] - clock[0] < args.seconds or len(clock) < 25:
    w = windows[torch.randint(0, len(windows), (48,))].transpose(1, 2)
    loss = F.huber_loss(model(w[:, :96]), w[:, 96:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sched.step()
    losses.append(loss.detach())
    if len(losses) % 50 == 0:
        print(len(losses), float(torch.stack(losses[-50:]).mean()))
    clock.append(time.perf_counter())
if args.times:
    json.dump(torch.tensor(clock, dtype=torch.float64).diff().tolist(), open(args.times, "w"))
