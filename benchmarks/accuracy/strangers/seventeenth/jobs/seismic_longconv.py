"""Earthquake phase picking with long implicit convolutions (three-component waveforms)."""

import argparse, json, time
from functools import partial
import torch
from torch import nn
from torch.nn import functional as F


def exact_size(n):
    return n


def smooth_size(n):
    """Smallest 2^a 3^b 5^c that is at least n."""
    best = 1 << (n - 1).bit_length()
    c = 1
    while c < best:
        b = c
        while b < best:
            a = b
            while a < n:
                a *= 2
            best = min(best, a)
            b *= 3
        c *= 5
    return best


def long_conv(u, k, size):
    L = u.shape[-1]
    n = size(L + k.shape[-1] - 1)
    y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)
    return y[..., :L]


class ImplicitFilter(nn.Module):
    def __init__(self, channels, length, feats=16):
        super().__init__()
        t = torch.linspace(0, 1, length)[:, None]
        f = torch.arange(1, feats // 2 + 1)[None] * torch.pi
        self.register_buffer("pos", torch.cat([torch.sin(t * f), torch.cos(t * f)], 1))
        self.register_buffer("decay", torch.exp(-t * torch.linspace(2, 20, channels)[None]))
        self.net = nn.Sequential(nn.Linear(feats, 24), nn.SiLU(), nn.Linear(24, channels))

    def forward(self):
        return (self.net(self.pos) * self.decay).T


class Mixer(nn.Module):
    def __init__(self, channels, length, conv):
        super().__init__()
        self.filter, self.conv = ImplicitFilter(channels, length), conv
        self.gate, self.out = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, channels, 1)
        self.skip = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x):
        y = self.conv(x, self.filter()) + self.skip * x
        return x + self.out(y * torch.sigmoid(self.gate(x)))


class Picker(nn.Module):
    def __init__(self, length, conv, channels=24, depth=2):
        super().__init__()
        self.inp = nn.Conv1d(3, channels, 7, padding=3)
        self.mix = nn.Sequential(*[Mixer(channels, length, conv) for _ in range(depth)])
        self.head = nn.Conv1d(channels, 3, 1)

    def forward(self, w):
        return self.head(self.mix(self.inp(w)))


def synth(n, length, g):
    w = 0.1 * torch.randn(n, 3, length, generator=g)
    onset = torch.randint(200, length - 400, (n,), generator=g)
    y = torch.zeros(n, length, dtype=torch.long)
    for i, o in enumerate(onset.tolist()):
        w[i, :, o : o + 300] += torch.randn(3, 300, generator=g) * torch.linspace(1, 0, 300)
        y[i, o - 10 : o + 10] = 1
    return w, y


if __name__ == "__main__":
    P = argparse.ArgumentParser()
    P.add_argument("--seconds", type=float, default=10)
    P.add_argument("--times")
    P.add_argument("--better", action="store_true")
    A = P.parse_args()
    g = torch.Generator().manual_seed(8)
    torch.manual_seed(8)
    LENGTH = 3001  # 30 s at 100 Hz, both ends included
    waves, marks = synth(200, LENGTH, g)
    net = Picker(LENGTH, partial(long_conv, size=smooth_size if A.better else exact_size))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    weight = torch.tensor([1.0, 20.0, 20.0])
    times, until = [], time.perf_counter() + A.seconds
    while time.perf_counter() < until:
        t0 = time.perf_counter()
        i = torch.randint(0, len(waves), (4,), generator=g)
        loss = F.cross_entropy(net(waves[i]), marks[i], weight=weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
        if len(times) % 25 == 0:
            print(len(times), "loss", f"{loss.item():.4f}")
    if A.times:
        with open(A.times, "w") as f:
            json.dump(times, f)
