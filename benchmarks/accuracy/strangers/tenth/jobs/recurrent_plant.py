"""Identify a nonlinear plant with a weight-normalised recurrent state-space model."""

import argparse
import json
import time

import torch
import torch.nn as nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

STEPS, INPUTS, STATES, OUTPUTS = 50, 4, 160, 3


class StateSpace(nn.Module):
    def __init__(self):
        super().__init__()
        self.trans = weight_norm(nn.Linear(STATES, STATES))
        self.drive = weight_norm(nn.Linear(INPUTS, STATES))
        self.gate = spectral_norm(nn.Linear(STATES, STATES))
        self.read = nn.Linear(STATES, OUTPUTS)

    def cell(self, s, u):
        cand = torch.tanh(self.trans(s) + self.drive(u))
        keep = torch.sigmoid(self.gate(s))
        return keep * s + (1 - keep) * cand

    def forward(self, u):
        s = u.new_zeros(u.shape[0], STATES)
        ys = []
        for t in range(u.shape[1]):
            s = self.cell(s, u[:, t])
            ys.append(self.read(s))
        return torch.stack(ys, 1)


def plant(u):
    """Two coupled tanks with a slow leak."""
    lvl = torch.zeros(u.shape[0], OUTPUTS)
    out = []
    for t in range(u.shape[1]):
        inflow = u[:, t, :OUTPUTS].relu()
        lvl = lvl + 0.1 * (inflow - lvl.clamp_min(0).sqrt() + 0.2 * (lvl.roll(1, 1) - lvl))
        out.append(lvl)
    return torch.stack(out, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--times")
    ap.add_argument("--seconds", type=float, default=15)
    args = ap.parse_args()
    torch.manual_seed(9)
    u_all = torch.randn(512, STEPS, INPUTS).cumsum(1) * 0.3
    y_all = plant(u_all)
    net = StateSpace()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    times = []
    t0 = last = time.perf_counter()
    for it in range(2000):
        pick = torch.randint(len(u_all), (args.batch,))
        u, y = u_all[pick], y_all[pick]
        if args.better:
            with parametrize.cached():
                pred = net(u)
        else:
            pred = net(u)
        loss = nn.functional.mse_loss(pred, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if it % 25 == 0:
            print(f"iter {it} mse {loss.item():.4f}")
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if now - t0 > args.seconds:
            break
    if args.times:
        json.dump(times, open(args.times, "w"))


if __name__ == "__main__":
    main()
