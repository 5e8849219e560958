"""Layer-normalised GRU for ECG beat labelling (custom recurrence)."""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn


class LNGRU(nn.Module):
    def __init__(self, n_in, n_hid, ahead):
        super().__init__()
        self.w_in = nn.Linear(n_in, 3 * n_hid)
        self.w_hid = nn.Linear(n_hid, 3 * n_hid, bias=False)
        self.ln_in = nn.LayerNorm(3 * n_hid)
        self.ln_hid = nn.LayerNorm(3 * n_hid)
        self.n_hid, self.ahead = n_hid, ahead

    def cell(self, gx, h):
        gh = self.ln_hid(self.w_hid(h))
        rx, zx, nx = gx.chunk(3, -1)
        rh, zh, nh = gh.chunk(3, -1)
        r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
        n = torch.tanh(nx + r * nh)
        return n + z * (h - n)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.n_hid)
        outs = []
        if self.ahead:
            gates = self.ln_in(self.w_in(x)).unbind(1)
            for gx in gates:
                h = self.cell(gx, h)
                outs.append(h)
        else:
            for t in range(x.shape[1]):
                gx = self.ln_in(self.w_in(x[:, t]))
                h = self.cell(gx, h)
                outs.append(h)
        return torch.stack(outs, 1)


class BeatModel(nn.Module):
    def __init__(self, leads, ahead, hid=48):
        super().__init__()
        self.rnn = LNGRU(leads, hid, ahead)
        self.out = nn.Linear(hid, 5)

    def forward(self, x):
        return self.out(self.rnn(x))


def ecg(n, leads, steps, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, steps, leads, generator=g)
    y = (x[..., 0] > 1).long() + (x[..., 1] > 1).long()
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--times")
    ap.add_argument("--better", action="store_true")
    ap.add_argument("--features", type=int, default=768)
    args = ap.parse_args()
    torch.manual_seed(0)
    x, y = ecg(48, args.features, 50)
    model = BeatModel(args.features, args.better)
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < args.seconds:
        t = time.perf_counter()
        rows = torch.randint(len(x), (8,))
        loss = F.cross_entropy(model(x[rows]).flatten(0, 1), y[rows].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        times.append(time.perf_counter() - t)
    print("loss", loss.item())
    if args.times:
        with open(args.times, "w") as f:
            json.dump(times, f)


if __name__ == "__main__":
    main()
