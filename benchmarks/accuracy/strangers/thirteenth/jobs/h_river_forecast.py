"""River-level forecast: LSTM encoder, autoregressive decoder with scheduled sampling."""

import argparse
import math
import time

import torch
from torch import nn

PAST, AHEAD, BATCH, HID = 24, 10, 128, 256


class Forecaster(nn.Module):
    def __init__(self, gauges=14):
        super().__init__()
        self.encoder = nn.LSTM(gauges, HID, batch_first=True)
        self.cell = nn.LSTMCell(gauges, HID)
        self.readout = nn.Linear(HID, gauges)

    def forward(self, past, future=None, teacher=0.0):
        _, (h, c) = self.encoder(past)
        h, c = h[0], c[0]
        level = past[:, -1]
        outs = []
        for k in range(AHEAD):
            h, c = self.cell(level, (h, c))
            pred = level + self.readout(h)
            outs.append(pred)
            if future is not None and torch.rand(()).item() < teacher:
                level = future[:, k]
            else:
                level = pred
        return torch.stack(outs, 1)


def rivers(days=6000, gauges=14):
    t = torch.arange(days).float().unsqueeze(1)
    phase = torch.rand(gauges) * 6.28
    rain = (torch.rand(days, gauges) < 0.08).float() * torch.rand(days, gauges) * 3
    level = torch.zeros(days, gauges)
    state = torch.zeros(gauges)
    for d in range(days):
        state = 0.85 * state + rain[d]
        level[d] = state
    level = level + torch.sin(2 * math.pi * t / 365 + phase)
    return (level - level.mean(0)) / level.std(0)


def draw(series, starts):
    windows = torch.stack([series[s : s + PAST + AHEAD] for s in starts.tolist()])
    return windows[:, :PAST], windows[:, PAST:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    args = ap.parse_args()
    torch.manual_seed(365)
    series = rivers()
    net = Forecaster()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999)
    durations, step = [], 0
    finish = time.perf_counter() + args.seconds
    while time.perf_counter() < finish:
        t0 = time.perf_counter()
        starts = torch.randint(0, 5000, (BATCH,))
        past, future = draw(series, starts)
        teacher = max(0.0, 1 - step / 1000)
        pred = net(past, future, teacher)
        loss = nn.functional.smooth_l1_loss(pred, future)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        print(f"\rstep {step} loss {loss.item():.4f} teacher {teacher:.2f}", end="", flush=True)
        if step % 100 == 0:
            with torch.no_grad():
                past, future = draw(series, torch.randint(5100, 5900, (64,)))
                err = (net(past) - future).abs().mean((0, 2))
            print("\nerror by lead day:", " ".join(f"{e:.3f}" for e in err.tolist()))
        durations.append(time.perf_counter() - t0)
    print()
    if args.times:
        with open(args.times, "w") as f:
            f.write("\n".join(f"{d:.6f}" for d in durations) + "\n")


if __name__ == "__main__":
    main()
